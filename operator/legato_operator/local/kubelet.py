"""Runs every pod of the store as a process, and writes the list of workers for gateways."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

from legato_operator.api.quantities import GPU
from legato_operator.cluster import Object, Ref, is_leaving, labels_of, ref_of, uid_of
from legato_operator.local.files import MountedFolder, WorkersFile
from legato_operator.local.pod import PodLife, Surroundings
from legato_operator.local.pod_status import HOST
from legato_operator.manifests import common, secret
from legato_operator.manifests.pods import adapters, devices
from legato_protocol import names

ENV_WORKERS = "LEGATO_WORKERS_FILE"
ENV_TOKENS = "LEGATO_TOKEN_FOLDER"
ENV_ADAPTERS = "LEGATO_ADAPTERS_FOLDER"
ENV_SLICES = "LEGATO_SLICES_FOLDER"
ENV_GPU = "CUDA_VISIBLE_DEVICES"
_MOUNTED: Mapping[str, Callable[[Object], dict[str, str]]] = {
    "Secret": secret.content,
    adapters.CONFIG_MAP: adapters.content,
}


class Kubelet:
    """Runs pods until it is cancelled, and then kills every process."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._lives: dict[str, PodLife] = {}  # by uid
        self._gpus: dict[str, list[str]] = {}  # GPUs by uid of the pod
        self._files: dict[tuple[str, str], WorkersFile] = {}  # by namespace and service
        self._mounted: dict[Ref, MountedFolder] = {}  # Secrets and ConfigMaps

    async def run(self) -> None:
        """Follows the pods of the store and their mounted objects: tokens and lists of adapters."""
        async with asyncio.TaskGroup() as tasks:
            for kind, content in _MOUNTED.items():
                tasks.create_task(self._follow_mounted(kind, content))
            async for event in self._around.store.follow("Pod"):
                if event.type != "DELETED":
                    self._see(event.object, tasks)

    def kill_all(self) -> None:
        """Kills every process immediately."""
        for life in self._lives.values():
            life.kill()

    def _see(self, pod: Object, tasks: asyncio.TaskGroup) -> None:
        uid = uid_of(pod)
        if uid not in self._lives:
            self._lives[uid] = self._life(pod)
            tasks.create_task(self._live(uid))
        if is_leaving(pod):
            self._lives[uid].leave()

    async def _live(self, uid: str) -> None:
        await self._lives[uid].run()
        del self._lives[uid]
        self._gpus.pop(uid, None)

    def _life(self, pod: Object) -> PodLife:
        workers = self._workers_file(pod)
        name, is_worker = ref_of(pod).name, labels_of(pod).get(names.LABEL_APP) == names.APP_WORKER

        def reachable(ports: dict[str, int] | None) -> None:
            if ports is None:
                workers.remove(name)
            elif is_worker and "control" in ports:
                workers.add(name, f"{HOST}:{ports['control']}")

        service, namespace = labels_of(pod).get(names.LABEL_SERVICE, ""), ref_of(pod).namespace
        tokens = self._folder(Ref("Secret", namespace, common.token_name_of(service)))
        listed = self._folder(Ref(adapters.CONFIG_MAP, namespace, adapters.name(service)))
        variables = {ENV_WORKERS: str(workers.path), ENV_TOKENS: str(tokens.path), ENV_ADAPTERS: str(listed.path)}
        variables[ENV_SLICES] = str(self._around.folder / "slices")
        return PodLife(pod, self._around, {**variables, **self._gpu(pod)}, reachable)

    def _gpu(self, pod: Object) -> dict[str, str]:
        """Returns the variable with the requested number of GPUs, those with the fewest pods. Pods may share GPUs."""
        count = devices.gpus(devices.requested(pod["spec"]), (GPU,))
        if not self._around.gpus or not count:
            return {}
        shares = Counter(gpu for gpus in self._gpus.values() for gpu in gpus)
        self._gpus[uid_of(pod)] = chosen = sorted(self._around.gpus, key=shares.__getitem__)[:count]
        return {ENV_GPU: ",".join(chosen)}

    async def _follow_mounted(self, kind: str, content: Callable[[Object], dict[str, str]]) -> None:
        async for event in self._around.store.follow(kind):
            if event.type != "DELETED":
                self._folder(ref_of(event.object)).write(content(event.object))

    def _folder(self, ref: Ref) -> MountedFolder:
        if ref not in self._mounted:
            name = f"{ref.namespace}.{ref.name}.{ref.kind.lower()}"
            self._mounted[ref] = MountedFolder(self._around.folder / name)
        return self._mounted[ref]

    def _workers_file(self, pod: Object) -> WorkersFile:
        key = (ref_of(pod).namespace, labels_of(pod).get(names.LABEL_SERVICE, ""))
        if key not in self._files:
            self._files[key] = WorkersFile(self._around.folder / f"{'.'.join(key)}.workers.json")
        return self._files[key]
