"""A trained model as a web service: ``deepgat serve``, the extra ``serve``.

``served.py`` answers questions with a model and knows nothing of HTTP. ``app.py`` has the routes,
``middleware.py`` what happens to every request (identity, token, log, metrics), ``work.py`` the
threads that compute, ``server.py`` the process. Its only state is the model folder, which it reads.
"""
