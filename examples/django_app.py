"""Limits of a Django site and of one of its views: `gunicorn django_app:wsgi` or `uvicorn django_app:asgi`."""

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

from headgate.integrations.django import rate_limit

HEADGATE = {"limits": "20/minute", "key": lambda request: request.headers.get("X-User-Id")}
MIDDLEWARE = ["headgate.integrations.django.RateLimitMiddleware"]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=MIDDLEWARE, HEADGATE=HEADGATE)

urlpatterns = [
    path("", rate_limit("5/minute")(lambda request: HttpResponse("hello\n"))),
    path("users/<int:number>", lambda request, number: HttpResponse(f"user {number}\n")),
]
wsgi, asgi = get_wsgi_application(), get_asgi_application()
