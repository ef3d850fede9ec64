"""What clients send and get, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import from_json

from deepgat.errors import cut_middle, printable
from deepgat.serving.limits import Limits
from deepgat.serving.problems import QUOTED, Problem, invalid, too_many

LONGEST_ID = 1000
LONGEST_TEXT = 100_000
"""Characters of one value of a new node."""
LARGEST = 2**63


def _node_id(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST:
        return str(value)
    if not isinstance(value, str) or not value:
        raise ValueError("expected the id of a node: a text, or its number")
    if len(value) > LONGEST_ID:
        raise ValueError(f"expected an id of at most {LONGEST_ID} characters")
    return value


def _number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(value, float) and math.isfinite(value)) or (
        isinstance(value, int) and abs(value) < LARGEST
    )


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool) or _number(value):
        return value
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise ValueError(f"expected a text of at most {LONGEST_TEXT} characters")
        return value
    if isinstance(value, list) and all(map(_number, value)):
        return value
    raise ValueError("expected a number, a text, true, false, null, or a list of numbers")


NodeId = Annotated[
    Any,
    AfterValidator(_node_id),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["member-007"]}),
]
Cell = Annotated[
    Any,
    AfterValidator(_cell),
    WithJsonSchema({"type": ["number", "string", "boolean", "null", "array"]}),
]
Row = dict[str, Cell]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Options(Body):
    coverage: StrictFloat | None = Field(
        None, gt=0, lt=1, description="Also give the set of classes that has the true one so often."
    )
    probabilities: StrictBool = Field(True, description="Whether to give every class's.")


class PredictRequest(Options):
    """They were predicted when the service started."""

    nodes: list[NodeId] = Field(min_length=1, description="Their ids.")


class PredictNewRequest(Options):
    """They do not change the graph, and no other request sees them."""

    nodes: list[Row] = Field(
        min_length=1,
        description="A row per node with the columns of nodes.csv: its id and its features. Where "
        "the graph came without columns, its features are the list x.",
        examples=[[{"id": "new-1", "age": 31, "town": "Ashford"}]],
    )
    edges: list[Row] = Field(
        default_factory=list,
        description="A row per edge with the columns of edges.csv, between new nodes and to nodes "
        "of the graph.",
        examples=[[{"source": "new-1", "target": "member-007"}]],
    )


class ExplainRequest(Body):
    """The node is one of the training graph."""

    node: NodeId = Field(description="Its id.")
    top: StrictInt = Field(10, ge=1, le=1000, description="Neighbours to give, the most heard.")


class Prediction(BaseModel):
    node: str
    label: str | None = Field(description="The class; null where a node may have several labels.")
    labels: list[str] | None = Field(None, description="Where a node may have several labels.")
    confidence: float
    probabilities: dict[str, float] | None = None
    set: list[str] | None = Field(None, description="The classes of the set, with coverage.")


class Predictions(BaseModel):
    predictions: list[Prediction]
    notes: list[str] = Field(description="What was changed while reading new nodes.")


class Layer(BaseModel):
    label: str = Field(description="The class that the layer predicts.")
    probabilities: dict[str, float]


class Neighbour(BaseModel):
    node: str
    label: str = Field(description="The class that the model predicts for it.")
    attention: list[float] = Field(description="The node's attention to it, by layer.")


class Explanation(BaseModel):
    node: str
    label: str | None = Field(description="Its class, where the training graph has it.")
    layers: dict[str, Layer] = Field(description="By number; 0 is before the first layer.")
    neighbours: list[Neighbour] = Field(description="The node itself first.")
    more_neighbours: int


class ModelInfo(BaseModel):
    system: str
    layers: int
    classes: list[str]
    several_labels: bool
    features: int
    columns: list[str] = Field(description="Of nodes.csv, as new nodes need them.")
    nodes: int
    new_nodes: bool = Field(description="Whether new nodes can be predicted.")
    version: str


class ErrorInfo(BaseModel):
    code: str
    message: str
    field: str | None


class ErrorBody(BaseModel):
    error: ErrorInfo


Parsed = TypeVar("Parsed", bound=Body)


def parse(body: bytes, kind: type[Parsed], limits: Limits) -> Parsed:
    """A request's body; a :class:`Problem` says what is wrong with it."""
    try:
        plain = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    if not isinstance(plain, dict):
        raise invalid('the body is not a JSON object: expected {"name": value, …}')
    for field, most in (("nodes", limits.max_nodes), ("edges", limits.max_edges)):
        items = plain.get(field)
        if isinstance(items, list) and len(items) > most:
            raise too_many(field, len(items), most)
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise _first(error, kind) from None


def _first(found: ValidationError, kind: type[Body]) -> Problem:
    """The first mistake in a body, as a sentence."""
    first = found.errors(include_url=False, include_input=False)[0]
    field = _place(first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        return invalid(f"{field} is not a field of this request: expected {known}", field)
    if first["type"] == "missing":
        return invalid(f"{field} is missing: this request needs it", field)
    message = first["msg"].removeprefix("Value error, ")
    return invalid(f"{field}: {message[:1].lower()}{message[1:]}", field)


def _place(path: tuple[int | str, ...]) -> str:
    """("nodes", 3, "age") → "nodes[3].age"; a client's own names are cut."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_name(step)}"
    return text.removeprefix(".")


def _name(text: str) -> str:
    return printable(cut_middle(text, QUOTED))


def to_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
