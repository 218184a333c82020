"""Which generation of its views a pipeline runs, and which one it keeps up beside it.

A pipeline that declares other views than those that readers read builds them from the beginning, as
another generation (`millstream.views.generations`). Until that has caught up, the earlier one is
maintained too, by this process, unless another one does: of the pipeline's function, only the
frames of the earlier views are used, so that the plan is what it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.reading.options import parse_read_options
from millstream.pipelines.reading.positions import Positions
from millstream.pipelines.running.sinks import view_name
from millstream.pipelines.spec import ONLY, PipelineSpec
from millstream.views.generations import FIRST, generation_name

if TYPE_CHECKING:
    from millstream.pipelines.offsets import Offsets
    from millstream.pipelines.running.settings import Settings


@dataclass(frozen=True)
class Chosen:
    """`pipeline` has all views that are declared; `earlier` those that readers read until then, if
    they are others and can be maintained here."""

    pipeline: PipelineSpec
    earlier: PipelineSpec | None = None


def choose_generation(
    pipeline: PipelineSpec,
    settings: Settings,
    *,
    remove_views: bool = False,
    rebuild_views: bool = False,
) -> Chosen:
    """From what the store has; with `rebuild_views` a new one, although the views are the same.
    Raises `ConfigError` if readers would lose views, unless they are to be removed. Tables of
    earlier generations are dropped."""
    from millstream.pipelines.stores import open_store

    if not pipeline.views or len(pipeline.views) < len(pipeline.writes):
        return Chosen(pipeline)  # topics and tables would be written once more
    outputs = {view_name(name, it): name for name, it in pipeline.views.items()}
    public = pipeline.public_name
    with open_store(settings.store_url) as store:
        found = store.generations(public)
        number = found.choose(outputs)
        if rebuild_views and found.serving is not None:
            number = found.last + 1
        gone = found.served() - outputs.keys()
        if gone and number not in found.views and not remove_views:
            raise ConfigError(
                f"{', '.join(sorted(gone))}: readers of {public} have these views, and it does not "
                "declare them. To take them from readers, start it with remove_views "
                "(--remove-views), which builds its other views again"
            )
        given_up = [] if number == found.serving else found.others(number)
        store.retire(public, [generation_name(public, it) for it in given_up])
    chosen = replace(pipeline, generation=number)
    if found.serving in (None, number) or gone:  # the code of a view that is gone is not here
        return Chosen(chosen)
    earlier = only_outputs(pipeline, [outputs[it] for it in outputs if it in found.served()])
    return Chosen(chosen, replace(earlier, generation=found.serving))


def only_outputs(pipeline: PipelineSpec, names: list[str]) -> PipelineSpec:
    """The pipeline with some of its outputs."""
    return replace(
        pipeline,
        function=_choosing(pipeline.function, names),
        writes={name: pipeline.writes[name] for name in names},
    )


def _choosing(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def choose(*frames: Any, **named: Any) -> Any:
        made = function(*frames, **named)
        if names == [ONLY]:
            return made
        if isinstance(made, Mapping):
            return {name: it for name, it in made.items() if name in names}
        return made.select(*(f"`{name}`" for name in names))

    return choose


def refuse_lost_records(
    pipeline: PipelineSpec,
    options: Mapping[str, Mapping[str, str]],
    starting: Mapping[str, Offsets],
) -> None:
    """Raises `ConfigError` if a topic no longer has the records that the earlier generation has
    read: the views would lose them. `options` and `starting` are by parameter."""
    if pipeline.generation == FIRST:
        return
    for parameter, it in pipeline.reads.items():
        if it.may_lose_data:
            continue
        positions = Positions(parse_read_options(options[parameter], streaming=True))
        try:
            earliest = positions.earliest(positions.partitions())
        finally:
            positions.close()
        given = it.start_at if isinstance(it.start_at, Mapping) else {}
        for (name, partition), offset in sorted(earliest.items()):
            begin = starting.get(parameter, {}).get((name, partition), given.get(partition, 0))
            if max(begin, 0) < offset:  # EARLIEST is negative
                raise ConfigError(
                    f"{pipeline.public_name} has other views than before, which are built from the "
                    f"beginning, but {name}-{partition} has lost the records before offset "
                    f"{offset}: its other views would lose what came from them. Declare new views "
                    "in a pipeline of their own, or accept the loss: "
                    'topic(..., options={"failOnDataLoss": False})'
                )
