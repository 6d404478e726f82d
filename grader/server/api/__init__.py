"""The routes of the HTTP API, and the models of their bodies."""
