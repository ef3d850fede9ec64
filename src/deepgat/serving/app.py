"""The routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from deepgat import __version__
from deepgat.serving.access import Access
from deepgat.serving.api_page import api_page
from deepgat.serving.bodies import (
    Body,
    ErrorBody,
    ExplainRequest,
    Explanation,
    ModelInfo,
    Predictions,
    PredictNewRequest,
    PredictRequest,
    to_bytes,
)
from deepgat.serving.middleware import REQUEST_ID, Log, Middleware
from deepgat.serving.problems import Problem, failure
from deepgat.serving.served import Served
from deepgat.serving.service import Service

ERRORS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    409: "This model cannot do that.",
    413: "The request is too large.",
    415: "The body is not declared as JSON.",
    422: "The body does not say what it should.",
    503: "Busy, loading or stopping; see Retry-After.",
    504: "The answer took too long.",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def create_app(
    service: Service, access: Access, log: Log, on_failure: Callable[[], None] = lambda: None
) -> ASGIApp:
    """The service as an ASGI application.

    Args:
        service: what answers; it begins to load its model when the application starts.
        access: who may ask.
        log: takes a line per request.
        on_failure: called when the model cannot be loaded.
    """

    async def start() -> None:
        begin = time.perf_counter()
        await service.start(on_failure)
        if service.served is not None:
            log({"event": "ready", "ms": round(1000 * (time.perf_counter() - begin))})

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(start())
        yield
        loading.cancel()
        service.close()

    app = FastAPI(
        title="deepgat",
        version=__version__,
        description="Predictions and explanations of one trained model.",
        lifespan=lifespan,
        docs_url=None,  # Swagger UI and ReDoc are loaded from elsewhere; /docs needs no network
        redoc_url=None,
    )

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return _of_routing(error).response()

    @app.exception_handler(Problem)
    async def told(_: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(Exception)
    async def failed(request: Request, _: Exception) -> Response:
        return failure(request.scope[REQUEST_ID]).response()

    _add_pages(app, service)
    _add_questions(app, service)
    return Middleware(app, access, service.metrics, log)


def _add_pages(app: FastAPI, service: Service) -> None:
    """What is read by people, monitors and programs that look around."""

    @app.get("/", response_class=HTMLResponse, summary="The model's page")
    async def page(request: Request) -> Response:
        found = await service.page()
        headers = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return HTMLResponse(found.gzipped, headers=headers)
        return HTMLResponse(found.plain, headers=headers)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(api_page(app.openapi()), headers={"Content-Security-Policy": POLICY})

    @app.get("/health", summary="Whether the process is alive")
    async def health() -> Response:
        return _json(b'{"status":"alive"}')

    @app.get("/ready", summary="Whether predictions are answered", responses=_errors(503))
    async def ready() -> Response:
        service.ready()
        return _json(b'{"status":"ready"}')

    @app.get("/metrics", summary="Counters in the format of Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=service.metrics.content_type)

    @app.get("/v1/model", response_model=ModelInfo, summary="What the model is")
    async def model() -> Response:
        return _json(to_bytes(service.ready().info()))


def _add_questions(app: FastAPI, service: Service) -> None:
    """What is asked of the model. Bodies are read by :mod:`reading`, within limits."""

    def question(path: str, body: type[Body], answer: type[BaseModel], summary: str) -> Any:
        """The decorator of a route that takes and returns JSON."""
        return app.post(
            path,
            response_model=answer,
            summary=summary,
            openapi_extra=_takes(body),
            responses=_errors(*ERRORS),
            response_model_exclude_none=True,
        )

    @question("/v1/predict", PredictRequest, Predictions, "Predict nodes of the training graph")
    async def predict(request: Request) -> Response:
        work = Served.predict
        return _json(await service.answer(request, PredictRequest, service.lookups, work))

    @question(
        "/v1/predict-new",
        PredictNewRequest,
        Predictions,
        "Predict new nodes from their features and edges",
    )
    async def predict_new(request: Request) -> Response:
        work = Served.predict_new
        return _json(await service.answer(request, PredictNewRequest, service.passes, work))

    @question(
        "/v1/explain",
        ExplainRequest,
        Explanation,
        "What every layer predicts for a node, and whom it listens to",
    )
    async def explain(request: Request) -> Response:
        return _json(await service.explain(request))


def _takes(body: type[Body]) -> dict[str, Any]:
    """The body of a route, for its description."""
    content = {"application/json": {"schema": body.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": ERRORS[status]} for status in statuses}


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _of_routing(error: HTTPException) -> Problem:
    """What the router says of a path or a method that it does not know."""
    if error.status_code == 405:
        message = "this path has another method: /docs lists paths and methods"
        return Problem(405, "wrong_method", message, headers=error.headers)
    if error.status_code == 404:
        return Problem(404, "not_found", "there is no such path: /docs lists those that there are")
    return Problem(error.status_code, "refused", str(error.detail))
