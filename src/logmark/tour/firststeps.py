"""The way from a fresh install to the first reset, ours and that of Apache Kafka's quickstart, counted."""

from logmark.tour.elements import Prose, Steps, Title
from logmark.tour.stage import Show

INSTALL = "pip install ."
SERVE = "logmark serve"
OURS = (
    INSTALL,
    SERVE,
    "logmark topics create clicks",
    r"printf '/home\n/shoes\n/cart\n' | logmark produce clicks",
    "logmark consume clicks --group billing",
    "logmark offsets reset billing --topic clicks --to-earliest --yes",
)
# The quickstart of Kafka 4.3, steps 1 to 5, with the files downloaded before and without the commands that only look.
KAFKAS = (
    "tar -xzf kafka_2.13-4.3.0.tgz",
    "cd kafka_2.13-4.3.0",
    'KAFKA_CLUSTER_ID="$(bin/kafka-storage.sh random-uuid)"',
    "bin/kafka-storage.sh format --standalone -t $KAFKA_CLUSTER_ID -c config/server.properties",
    "bin/kafka-server-start.sh config/server.properties",
    "bin/kafka-topics.sh --create --topic quickstart-events --bootstrap-server localhost:9092",
    "bin/kafka-console-producer.sh --topic quickstart-events --bootstrap-server localhost:9092",
    "bin/kafka-console-consumer.sh --topic quickstart-events --from-beginning --bootstrap-server localhost:9092",
)
_WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def tell(show: Show) -> None:
    """Show both ways with their number of commands."""
    ours, kafkas = _WORDS[len(OURS)], _WORDS[len(KAFKAS)]
    show(Title("From a fresh install to the first reset"))
    show(
        Prose(
            f"Your turn: {ours} commands, the first one in the folder of this repository, and from the third on in a "
            "second terminal."
        )
    )
    show(Steps(OURS))
    show(
        Prose(
            f"The quickstart of Apache Kafka 4.3 (files downloaded, Java 17 already there) needs {kafkas} until a "
            "record is read, and ends before a reset; with a group and `kafka-consumer-groups.sh --reset-offsets` it "
            f"is {_WORDS[len(KAFKAS) + 1]}. Its way with Docker saves one of them: two that run the image stand for "
            "three that start the server, and the tools still come from the download."
        )
    )
    show(Steps(KAFKAS))
