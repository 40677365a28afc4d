"""The one configuration of Django in a test process: imported before modules of Django that ask for settings."""

# mypy: disable-error-code="import-untyped"
# Django has no types.

from __future__ import annotations

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
    LOGGING_CONFIG=None,
    SECRET_KEY="for tests",
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
    USE_TZ=True,
)
django.setup()
