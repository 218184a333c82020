"""`/quotas`: limits of users, client ids and addresses."""

from __future__ import annotations

import math
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.quotas import (
    BYTE_RATES,
    CLIENT_ID,
    DEFAULT_NAME,
    IP,
    KEYS,
    USER,
    Entity,
    alter_quotas,
    describe_entity,
    describe_quotas,
    parse_rate,
    readable,
)
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, Refused, act, command, post
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.paths import link
from millstream.models import dataclass

KINDS = (USER, CLIENT_ID, IP)
DEFAULT, EXACT = "default", "name"


@dataclass(frozen=True)
class QuotaRow:
    """`entity` has None for a default; `shown` are the quotas for people."""

    entity: Entity
    quotas: dict[str, float]
    shown: dict[str, str]
    description: str


@dataclass(frozen=True)
class QuotasModel:
    quotas: Listed[QuotaRow]
    keys: dict[str, str]
    default_name: str


def load(cluster: Cluster, wanted: Wanted) -> QuotasModel:
    rows = [
        QuotaRow(
            entity,
            quotas,
            {key: readable(key, value) for key, value in quotas.items()},
            describe_entity(entity),
        )
        for entity, quotas in describe_quotas(cluster, {})
    ]
    found = listed(
        rows,
        wanted,
        text=lambda row: row.description,
        keys={
            "entity": lambda row: row.description,
            **{key: _value_of(key) for key in KEYS},
        },
        default="entity",
    )
    return QuotasModel(found, KEYS, DEFAULT_NAME)


def _value_of(key: str) -> Callable[[QuotaRow], float | None]:
    return lambda row: row.quotas.get(key)


async def show(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)
    return await page(request, "quotas.html", lambda cluster: load(cluster, wanted))


async def set_quotas(request: Request, form: Form) -> Response:
    entity, quotas = entity_of(form), quotas_of(form)
    if not quotas:
        raise Refused("Give at least one quota")
    options = [part for key, text in _given(form).items() for part in (_option(key), text)]
    return await act(
        request,
        alter_quotas,
        entity,
        quotas,
        done=f"Set for {describe_entity(entity)}: "
        + ", ".join(f"{KEYS[key].lower()} {readable(key, it)}" for key, it in quotas.items()),
        command=command(request, "quota", "set", *entity_options(entity), *options),
        back=link("quotas"),
    )


async def remove_quotas(request: Request, form: Form) -> Response:
    entity = entity_of(form)

    def remove(cluster: Cluster) -> None:
        known = [quotas for it, quotas in describe_quotas(cluster, entity) if it == entity]
        if not known:
            raise HTTPException(404, f"there is no quota for {describe_entity(entity)} any more")
        alter_quotas(cluster, entity, dict.fromkeys(known[0]))

    return await act(
        request,
        remove,
        done=f"Removed all quotas of {describe_entity(entity)}.",
        command=command(request, "quota", "remove", *entity_options(entity)),
        back=link("quotas"),
    )


def entity_of(form: Form) -> Entity:
    """For whom: fields `user`, `client-id`, `ip`; with `user.match=default`, for its default."""
    entity: Entity = {}
    for kind in KINDS:
        match = form.get(f"{kind}.match", EXACT if form.text(kind) else "")
        if match == DEFAULT:
            entity[kind] = None
        elif match == EXACT:
            if not form.text(kind):
                raise Refused(f"The {_words(kind)} is missing")
            entity[kind] = form.text(kind)
    if not entity:
        raise Refused("For whom? Give a user, a client id or an address")
    if IP in entity and len(entity) > 1:
        raise Refused("An address has quotas of its own: give no user and no client id with it")
    return entity


def _words(kind: str) -> str:
    return {USER: "user", CLIENT_ID: "client id", IP: "address"}[kind]


def quotas_of(form: Form) -> dict[str, float]:
    return {key: _quota(key, text) for key, text in _given(form).items()}


def _given(form: Form) -> dict[str, str]:
    return {key: form.get(key) for key in KEYS if form.get(key)}


def _quota(key: str, text: str) -> float:
    if key in BYTE_RATES:
        return parse_rate(KEYS[key], text)
    try:
        value = float(text)
    except ValueError:
        raise Refused(f"{KEYS[key]} must be a number, not {text!r}") from None
    if not math.isfinite(value) or value <= 0:
        raise Refused(f"{KEYS[key]} must be a positive number, not {text!r}")
    return value


def _option(key: str) -> str:
    return "--" + key.replace("_", "-")


def entity_options(entity: Entity) -> list[str]:
    options = []
    for kind, name in entity.items():
        options += [f"--{kind}-default"] if name is None else [f"--{kind}", name]
    return options


ROUTES = [
    Route("/quotas", show),
    post("/quotas", set_quotas),
    post("/quotas/remove", remove_quotas),
]
