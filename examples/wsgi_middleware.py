"""Limits before any WSGI application: `gunicorn wsgi_middleware:app`."""

from headgate.http.wsgi import RateLimitMiddleware


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello\n"]


app = RateLimitMiddleware(hello, limits="5/minute", key=lambda request: request.headers.get("X-User-Id"))
