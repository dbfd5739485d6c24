"""Workers whose jobs a test runs itself, one operation of the disk after the other."""

from collections import deque

from logmark.log.disk_worker import Done, Job


class SteppedWorker:
    """Keeps jobs until the test runs them."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Job, Done]] = deque()

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    def run(self, job: Job, done: Done) -> None:
        self._jobs.append((job, done))

    def step(self) -> None:
        """Do one operation of the oldest job, and report the job if that was the last one."""
        job, done = self._jobs[0]
        error: Exception | None = None
        try:
            next(job)
            return
        except StopIteration:
            pass
        except Exception as caught:  # noqa: BLE001 - a worker reports every error
            error = caught
        self._jobs.popleft()
        done(error)

    def finish_job(self) -> None:
        """Run the oldest job to its end."""
        job = self._jobs[0]
        while self._jobs and self._jobs[0] is job:
            self.step()

    def drop(self) -> None:
        """Forget every job, as a kill does."""
        self._jobs.clear()

    def finish(self) -> None:
        while self._jobs:
            self.step()

    def close(self) -> None:
        self.finish()


class SteppedWorkers:
    """Makes the workers of a group commit and keeps them by their names."""

    def __init__(self) -> None:
        self._made: dict[str, SteppedWorker] = {}

    def __call__(self, name: str) -> SteppedWorker:
        return self._made.setdefault(name, SteppedWorker())

    def step(self) -> None:
        """Do one operation of the first worker that has one."""
        for worker in self._made.values():
            if worker.is_busy:
                worker.step()
                return

    @property
    def writer(self) -> SteppedWorker:
        """Whoever writes entries to the WAL."""
        return self._made["logmark-wal"]

    @property
    def reserver(self) -> SteppedWorker:
        """Whoever makes files of the WAL ready."""
        return self._made["logmark-wal-files"]

    @property
    def flusher(self) -> SteppedWorker:
        """Whoever flushes logs."""
        return self._made["logmark-flush"]
