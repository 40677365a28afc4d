"""Limits of a Flask application and of one of its views: `gunicorn flask_app:app`."""

from flask import Flask

from headgate.integrations.flask import RateLimits

app = Flask(__name__)
limits = RateLimits(app, default="20/minute", key=lambda request: request.headers.get("X-User-Id"))


@app.get("/")
@limits("5/minute")
def hello():
    return "hello\n"


@app.get("/users/<int:number>")
def user(number):
    return f"user {number}\n"
