"""Calls about topics, their settings and the cluster."""

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Protocol

from logmark.client.answers import ConfigEntry, NewTopic
from logmark.client.errors import RefusedByBroker, UnknownTopic, error_code
from logmark.client.router import ANY, CONTROLLER, Answer, Router
from logmark.errors import ErrorCode
from logmark.wire.messages import Message
from logmark.wire.schema import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
)

TOPIC, BROKER = 2, 4
_SET, _DELETE = 0, 1
_SOURCE_TOPIC = 1


class _Result(Protocol):
    error_code: int
    error_message: str | None


class TopicCalls(Router):
    """Creating, changing and deleting topics; reading and changing settings."""

    def create_topic(
        self, name: str, *, partitions: int = -1, replication_factor: int = -1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create one topic; raise RefusedByBroker with the reason if that is refused."""
        topic = NewTopic(name=name, partitions=partitions, replication_factor=replication_factor, config=config or {})
        for failure in self.create_topics([topic]).values():
            raise failure

    def create_topics(self, topics: Iterable[NewTopic], *, is_dry_run: bool = False) -> dict[str, RefusedByBroker]:
        """Create topics, which can be found at once; return those that were not created, with the reason."""
        topics, deadline = list(topics), self._deadline()
        request = create_topics.Request(
            topics=[
                create_topics.RequestTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    configs=[create_topics.RequestConfig(name=k, value=v) for k, v in topic.config.items()],
                )
                for topic in topics
            ],
            timeout_ms=int(self.timeout_s * 1000),
            validate_only=is_dry_run,
        )
        answer = self._at_controller(create_topics, request, create_topics.Response, deadline)
        refused = {one.name: _refusal(one.name, one) for one in answer.topics if one.error_code}
        if not is_dry_run:
            self._wait_for_partitions({one.name: 1 for one in topics if one.name not in refused}, deadline)
        return refused

    def delete_topics(self, names: Sequence[str]) -> dict[str, RefusedByBroker]:
        """Delete topics; return those that were not deleted, with the reason."""
        deadline = self._deadline()
        request = delete_topics.Request(
            topics=[delete_topics.RequestTopic(name=name) for name in names],
            topic_names=list(names),
            timeout_ms=int(self.timeout_s * 1000),
        )
        answer = self._at_controller(delete_topics, request, delete_topics.Response, deadline)
        for partition in [one for one in self._leaders if one.topic in names]:
            del self._leaders[partition]
        return {one.name or "": _refusal(one.name or "", one) for one in answer.responses if one.error_code}

    def create_partitions(self, counts: Mapping[str, int]) -> dict[str, RefusedByBroker]:
        """Raise topics to these numbers of partitions; return those that were not, with the reason."""
        deadline = self._deadline()
        request = create_partitions.Request(
            topics=[
                create_partitions.RequestTopic(name=name, count=count, assignments=None)
                for name, count in counts.items()
            ],
            timeout_ms=int(self.timeout_s * 1000),
        )
        answer = self._at_controller(create_partitions, request, create_partitions.Response, deadline)
        refused = {one.name: _refusal(one.name, one) for one in answer.results if one.error_code}
        self._wait_for_partitions({name: count for name, count in counts.items() if name not in refused}, deadline)
        return refused

    def describe_configs(self, topics: Sequence[str]) -> dict[str, list[ConfigEntry]]:
        """Return every setting of these topics, with whether it is a default."""
        request = describe_configs.Request(
            resources=[
                describe_configs.RequestResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
                for name in topics
            ]
        )
        answer = self._ask(describe_configs, request, describe_configs.Response, to=ANY, deadline=self._deadline())
        for one in answer.results:
            if one.error_code:
                raise _refusal(one.resource_name, one)
        return {
            one.resource_name: [
                ConfigEntry(
                    name=entry.name,
                    value=entry.value,
                    is_default=entry.config_source != _SOURCE_TOPIC,
                    is_read_only=entry.read_only,
                    is_sensitive=entry.is_sensitive,
                )
                for entry in one.configs
            ]
            for one in answer.results
        }

    def topic_settings(self, topics: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """Return these settings of topics, by topic; leave out those that are missing or not permitted."""
        return self._settings(TOPIC, topics, names, to=ANY)

    def broker_settings(self, broker: int, names: Sequence[str]) -> dict[str, str | None]:
        """Return these settings of a broker; none if reading them is not permitted."""
        return self._settings(BROKER, [str(broker)], names, to=broker).get(str(broker), {})

    def _settings(
        self, kind: int, resources: Sequence[str], names: Sequence[str], *, to: int
    ) -> dict[str, dict[str, str | None]]:
        request = describe_configs.Request(
            resources=[
                describe_configs.RequestResource(resource_type=kind, resource_name=one, configuration_keys=list(names))
                for one in resources
            ]
        )
        answer = self._ask(describe_configs, request, describe_configs.Response, to=to, deadline=self._deadline())
        return {
            one.resource_name: {entry.name: entry.value for entry in one.configs}
            for one in answer.results
            if not one.error_code
        }

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Set these settings of a topic, and reset those whose value is None."""
        request = incremental_alter_configs.Request(
            resources=[
                incremental_alter_configs.RequestResource(
                    resource_type=TOPIC,
                    resource_name=topic,
                    configs=[
                        incremental_alter_configs.RequestConfig(
                            name=name, config_operation=_DELETE if value is None else _SET, value=value
                        )
                        for name, value in changes.items()
                    ],
                )
            ]
        )
        answer = self._at_controller(
            incremental_alter_configs, request, incremental_alter_configs.Response, self._deadline()
        )
        for one in answer.responses:
            if one.error_code:
                raise _refusal(topic, one)

    def _wait_for_partitions(self, counts: Mapping[str, int], deadline: float) -> None:
        """Wait until these topics have so many partitions, all with leaders, and not beyond the deadline.

        Apache Kafka's controller answers when the change is written, and brokers hear of it a little later: a client
        that continues at once could get the answer that the topic does not exist.
        """
        for _ in self._tries(deadline) if counts else ():
            found = self._metadata(list(counts), deadline)
            if not any(code.is_retriable for code in found.errors.values()) and all(
                len(topic.partitions) >= counts[topic.name]
                and all(one.leader in found.brokers for one in topic.partitions.values())
                for topic in found.topics.values()
            ):
                return

    def _at_controller(self, schema: ModuleType, request: Message, answer: type[Answer], deadline: float) -> Answer:
        """Ask the controller; not twice, for it may have done the work before the connection broke."""
        response: Answer | None = None
        for _ in self._tries(deadline):
            if self._controller not in self._brokers:
                self._metadata([], deadline)
            response = self._ask(schema, request, answer, to=CONTROLLER, deadline=deadline, is_repeatable=False)
            if ErrorCode.NOT_CONTROLLER not in _codes(response):
                break
            self._controller = -1
        assert response is not None
        return response


def _codes(response: Message) -> set[int]:
    results: list[_Result] = []
    for name in ("topics", "responses", "results"):
        results += getattr(response, name, [])
    return {one.error_code for one in results}


_SENTENCES = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "Topic {name} exists already; nothing was changed.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Topic {name} does not exist; `logmark topics list` shows those that do.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "You are not allowed to do this with topic {name}.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "You are not allowed to do this in this cluster.",
    ErrorCode.TOPIC_DELETION_DISABLED: "This cluster does not allow topics to be deleted (delete.topic.enable).",
}


def _refusal(name: str, result: _Result) -> RefusedByBroker:
    code = error_code(result.error_code)
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(_SENTENCES[code].format(name=name))
    if code in _SENTENCES:
        return RefusedByBroker(code, _SENTENCES[code].format(name=name))
    reason = (result.error_message or f"the broker answered {code.name}").rstrip(".")
    return RefusedByBroker(code, f"Topic {name}: {reason}.")
