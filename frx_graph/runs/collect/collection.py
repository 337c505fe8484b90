"""Run a workload and record it in a bundle.

The folder can be analysed at any moment, even if the collector is killed. It is created in one step, and its metadata
say how far the run has come. Events and samples are appended row by row; other files are replaced atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from pydantic import BaseModel

from frx_graph.analyze.run import analyze_files
from frx_graph.analyzers.run.steps import Scope
from frx_graph.errors import FrxError, summarize_error
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import open_bundle
from frx_graph.reports.kernels.explain_prompt import render_explanation
from frx_graph.reports.runs.run_document import RunDocument, format_summary
from frx_graph.reports.runs.run_explanation import explain_run
from frx_graph.runs.collect.bundle_writing import list_bundle_files, make_folder, write_zip
from frx_graph.runs.collect.imported_artifacts import gather_traces, import_traces
from frx_graph.runs.collect.run_metadata import Artifact, Manifest, ManifestFile, RunMetadata, State, describe_host
from frx_graph.runs.collect.run_settings import RunSettings
from frx_graph.runs.collect.sampling import DEVICE_HEADER, HOST_HEADER, Sampler, make_device_sampler, make_host_reader
from frx_graph.runs.workload.workload import STDERR, STDOUT, WorkloadEnd, WorkloadError, redact_secrets, run_workload
from frx_graph.support.atomic_file import write_all_atomically, write_atomically
from frx_graph.support.plain_text import escape_surrogates
from frx_graph.support.supervisor.process import unwind_on_termination

NO_GPU = "no NVIDIA GPU was found: gpu_metrics.csv has no samples"
NO_EVENTS = "the workload wrote no events: `frx init --patch train.py` adds the calls that record its steps"
NO_PROFILE = "no trace of torch.profiler was found, in the bundle or in --artifact-dir"


@dataclass(frozen=True, slots=True)
class Collected:
    """A finished run and its bundle.

    `archive` is None if no zip was written, `document` if the run could not be analysed; `metadata.warnings` say why.
    """

    folder: Path
    archive: Path | None
    metadata: RunMetadata
    end: WorkloadEnd
    document: RunDocument | None

    @property
    def files(self) -> tuple[Artifact, ...]:
        """The files of the bundle, in the order of listings."""
        return self.metadata.artifacts


def collect_run(settings: RunSettings, *, stdout: int | None = STDOUT, stderr: int | None = STDERR) -> Collected:
    """Run the workload and make its bundle. Its output goes to the descriptors `stdout` and `stderr`.

    Raises `FrxError`, with nothing left behind, if the folder cannot be made or the workload cannot be started. Later
    failures become warnings in the metadata, since the recorded run is still useful.
    """
    host = describe_host()
    metadata = RunMetadata(
        run_id=settings.run_id,
        job_name=settings.name,
        command=redact_secrets(settings.command),
        state=State.RUNNING,
        started_at=datetime.now(UTC),
        host=host,
    )
    collection = _RunInProgress(settings, metadata)
    make_folder(
        settings.folder,
        {
            bundle_layout.METADATA: _dump_json(collection.metadata),
            bundle_layout.RUN_CONFIG: settings.format_config(host).encode(),
            bundle_layout.GPU_METRICS: DEVICE_HEADER,
            bundle_layout.HOST_METRICS: HOST_HEADER,
        },
    )
    begin = time.time()
    end = collection.run(stdout, stderr)
    with unwind_on_termination():
        collection.import_profiles(begin)
        document = collection.write_analysis()
        archive = collection.finish()
    return Collected(settings.folder, archive, collection.metadata, end, document)


@dataclass(slots=True)
class _RunInProgress:
    settings: RunSettings
    metadata: RunMetadata
    warnings: list[str] = field(default_factory=list)
    imported: dict[PurePosixPath, Path] = field(default_factory=dict)
    sampled_devices: bool = False

    def run(self, stdout: int | None, stderr: int | None) -> WorkloadEnd:
        folder, settings = self.settings.folder, self.settings
        with contextlib.ExitStack() as sampling:

            def start_samplers(ancestor: int) -> None:
                for sampler in self._make_samplers(ancestor):
                    sampler.start()
                    sampling.callback(self._stop, sampler)

            try:
                end = run_workload(
                    settings.command,
                    log=folder / bundle_layout.LOGS,
                    environment=settings.build_environment(),
                    stdout=stdout,
                    stderr=stderr,
                    started=start_samplers,
                )
            except WorkloadError:
                # The collector has written every file in it.
                shutil.rmtree(folder)
                raise
            # Write this first: the analysis takes a while, and may be interrupted.
            self._update_metadata(
                state=State.ENDED,
                ended_at=datetime.now(UTC),
                duration_seconds=end.seconds,
                exit_code=end.exit_code,
                signal=end.signal,
            )
        if end.log_problem is not None:
            self.warnings.append(end.log_problem)
        return end

    def import_profiles(self, since: float) -> None:
        """Import traces written after a time (seconds since the epoch), and gather those in the bundle."""
        with self._turn_errors_into_warnings("traces may be missing"):
            self.warnings += gather_traces(self.settings.folder)
        if not self.settings.import_profiles:
            return
        for given in self.settings.artifacts or ():
            if not given.is_dir():
                self.warnings.append(f"there is no --artifact-dir {given}")
        self.imported, warnings = import_traces(self.settings.artifact_folders, self.settings.folder, since)
        self.warnings += warnings

    def write_analysis(self) -> RunDocument | None:
        """Write `derived/summary.json`, and the explanation if it is wanted; None if that cannot be done."""
        document = None
        with self._turn_errors_into_warnings("the run could not be analysed"):
            with open_bundle(self.settings.folder) as bundle:
                document = analyze_files(bundle)
            write_atomically(self.settings.folder / bundle_layout.SUMMARY, format_summary(document))
        if document is not None and self.settings.explain:
            with self._turn_errors_into_warnings("the run is not explained"):
                texts = render_explanation(explain_run(document.result, Scope.AUTO))
                write_all_atomically({self.settings.folder / name: text for name, text in texts.items()})
        return document

    def finish(self) -> Path | None:
        folder = self.settings.folder
        missing = [*self._find_missing()]
        files = list_bundle_files(folder)
        listed = (bundle_layout.METADATA, bundle_layout.MANIFEST)
        with self._turn_errors_into_warnings("the bundle has no manifest"):
            self._update_metadata(
                state=State.COMPLETE,
                artifacts=tuple(self._describe_artifact(file) for file in files if file not in listed),
                warnings=self._encode_warnings(),
            )
            manifest = Manifest(
                run_id=self.settings.run_id,
                limited_data=NO_EVENTS in missing,
                missing=tuple(missing),
                files=tuple(self._describe_manifest_file(file) for file in files if file != bundle_layout.MANIFEST),
            )
            write_atomically(folder / bundle_layout.MANIFEST, _dump_json(manifest).decode())
        archive = self.settings.archive if self.settings.zip else None
        if archive is not None:
            with self._turn_errors_into_warnings("there is no zip"):
                write_zip(archive, folder, list_bundle_files(folder))
            archive = archive if archive.exists() else None
        self.metadata = self.metadata.model_copy(
            update={
                "artifacts": tuple(self._describe_artifact(file) for file in list_bundle_files(folder)),
                "warnings": self._encode_warnings(),
            }
        )
        return archive

    def _make_samplers(self, ancestor: int) -> Iterator[Sampler]:
        folder, seconds = self.settings.folder, self.settings.interval_ms / 1000
        yield Sampler(folder / bundle_layout.HOST_METRICS, seconds, make_host_reader(ancestor))
        devices = make_device_sampler(folder / bundle_layout.GPU_METRICS, seconds)
        if devices is not None:
            self.sampled_devices = True
            yield devices

    def _stop(self, sampler: Sampler) -> None:
        sampler.stop()
        if sampler.problem is not None:
            self.warnings.append(sampler.problem)

    def _find_missing(self) -> Iterator[str]:
        folder = self.settings.folder
        events = folder / bundle_layout.EVENTS
        if not events.is_file() or not events.stat().st_size:
            yield NO_EVENTS
        if not any(file.parent == bundle_layout.PROFILER for file in list_bundle_files(folder)):
            yield NO_PROFILE
        if not self.sampled_devices:
            yield NO_GPU

    def _encode_warnings(self) -> tuple[str, ...]:
        return tuple(map(escape_surrogates, self.warnings))

    def _describe_artifact(self, file: PurePosixPath) -> Artifact:
        source = escape_surrogates(str(self.imported[file])) if file in self.imported else None
        return Artifact(path=str(file), bytes=self._measure_size(file), imported_from=source)

    def _describe_manifest_file(self, file: PurePosixPath) -> ManifestFile:
        with (self.settings.folder / file).open("rb") as content:
            digest, imported = hashlib.file_digest(content, "sha256").hexdigest(), file in self.imported
        return ManifestFile(path=str(file), bytes=self._measure_size(file), sha256=digest, imported=imported)

    def _measure_size(self, file: PurePosixPath) -> int:
        return (self.settings.folder / file).stat().st_size

    def _update_metadata(self, **known: object) -> None:
        self.metadata = self.metadata.model_copy(update=known)
        with self._turn_errors_into_warnings("the metadata are not up to date"):
            write_atomically(self.settings.folder / bundle_layout.METADATA, _dump_json(self.metadata).decode())

    @contextlib.contextmanager
    def _turn_errors_into_warnings(self, what: str) -> Iterator[None]:
        try:
            yield
        except FrxError as error:
            self.warnings.append(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001 - a failed analysis must not lose the run
            self.warnings.append(f"{what}: {summarize_error(error)}")


def _dump_json(model: BaseModel) -> bytes:
    return f"{model.model_dump_json(indent=2, by_alias=True)}\n".encode()
