"""Tables, figures and a page from stored results; never trains."""
