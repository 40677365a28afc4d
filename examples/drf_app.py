"""Limits of an API made with Django REST framework: `gunicorn drf_app:wsgi`."""

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

REST = {"DEFAULT_THROTTLE_CLASSES": ["headgate.integrations.drf.RateLimitThrottle"], "UNAUTHENTICATED_USER": None}
REST["DEFAULT_THROTTLE_RATES"] = {"hello": "5/min"}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], REST_FRAMEWORK=REST, HEADGATE={"trusted_hops": 1})
from rest_framework import response, views  # noqa: E402  # it reads the settings


class Hello(views.APIView):
    throttle_scope = "hello"

    def get(self, request):
        return response.Response("hello")


urlpatterns, wsgi = [path("", Hello.as_view())], get_wsgi_application()
