"""The web application under ``/eaco``: the page, and REST under ``/eaco/api/v1``."""
