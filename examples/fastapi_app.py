"""Limits of routes, routers and the application: `uvicorn fastapi_app:app`."""

import os

from fastapi import Depends, FastAPI

from headgate.integrations.fastapi import RateLimits, exempt

limits = RateLimits(store=os.environ.get("STORE", "memory://"), key=lambda request: request.headers.get("X-User-Id"))
app = FastAPI(dependencies=[Depends(limits("100/minute", name="all", scope="all"))])
limits.install(app)


@app.get("/items/{item_id}", dependencies=[Depends(limits("5/minute"))])
def item(item_id: int):
    return {"item": item_id}


app.get("/health")(exempt(lambda: "well"))
