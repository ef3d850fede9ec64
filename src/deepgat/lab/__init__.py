"""The laboratory: experiments, their store, the papers' tables, the report and the benchmarks.

It imports the library; the library never imports it. Install it with ``pip install deepgat[lab]``.
"""
