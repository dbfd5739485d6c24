"""A pipeline to run: with its cluster, its home, and the file that declares it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from logmark import properties
from logmark.client.client import Client
from logmark.offsets.contexts import read_contexts
from logmark.offsets.user_files import config_file
from logmark.spark.pipelines.declaration import PipelineDeclaration, format_sink, format_topics
from logmark.spark.pipelines.home import Home, default_root
from logmark.spark.pipelines.pipeline_files import reload_pipeline
from logmark.spark.pipelines.query import Brokers

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pipeline with its cluster and its home; `options` win over those of the pipeline."""

    pipeline: PipelineDeclaration
    brokers: Brokers
    home: Home
    file: str | None = None
    context: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline.name

    @property
    def group(self) -> str:
        """The pipeline's consumer group."""
        return self.pipeline.group

    @property
    def folder(self) -> str | None:
        """The folder of the pipeline's file, from which it imports its own modules."""
        return None if self.file is None else str(Path(self.file).absolute().parent)

    def query_options(self) -> dict[str, str]:
        """Return the options of a query of this pipeline: the job's own, and the owner of its groups."""
        return {"group.owner": self.home.owner(), **self.options}

    def connect(self) -> Client:
        """Return a client of the pipeline's cluster."""
        return Client(self.brokers.bootstrap_servers, config=self.brokers.properties, timeout_s=_TIMEOUT_S)

    def reload(self) -> "Job":
        """Return the job with the pipeline as its file declares it now."""
        return self if self.file is None else replace(self, pipeline=reload_pipeline(self.file, self.name))

    def save_description(self) -> None:
        """Write into the home's record what the pipeline is, for commands that do not load its file."""
        described: dict[str, Any] = {
            "file": self.file,
            "bootstrap_servers": self.brokers.bootstrap_servers,
            "context": self.context,
            "group": self.group,
            "topics": format_topics(self.pipeline),
            "sink": format_sink(self.pipeline.sink),
            "dead_letters": self.pipeline.dead_letters,
        }
        self.home.change(lambda record: replace(record, **described))


def make_job(
    pipeline: PipelineDeclaration,
    *,
    home: str | Path | None = None,
    bootstrap_servers: str | None = None,
    context: str | None = None,
    command_config: str | Path | None = None,
    options: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Job:
    """Return the pipeline with its cluster: the given one, else that of the environment, of the pipeline, of the user.

    The last resort is 127.0.0.1:9092.
    """
    known = read_contexts(config_file())
    if not bootstrap_servers and not context:
        bootstrap_servers, context = os.environ.get("LOGMARK_BOOTSTRAP_SERVERS"), os.environ.get("LOGMARK_CONTEXT")
    if not bootstrap_servers and not context:
        bootstrap_servers = pipeline.bootstrap_servers
        context = None if bootstrap_servers else known.current
    found = known.named(context) if context else None
    servers = bootstrap_servers or (found.bootstrap_servers if found else DEFAULT_BOOTSTRAP_SERVERS)
    command_config = command_config or os.environ.get("LOGMARK_COMMAND_CONFIG")
    own = properties.read(Path(command_config)) if command_config else {}
    return Job(
        pipeline=pipeline,
        brokers=Brokers(bootstrap_servers=servers, properties={**(found.properties if found else {}), **own}),
        home=Home(Path(home) if home is not None else default_root(), pipeline.name),
        file=file,
        context=found.name if found else None,
        options=options or {},
    )
