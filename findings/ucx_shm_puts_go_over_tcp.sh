#!/usr/bin/env bash
# UCX's shared-memory transports carry no one-sided puts into memory that the application allocated, and say nothing.
#
# Expected: two processes of one host, UCX_TLS with `posix` and `sysv` before `tcp`. A put into memory of the other process
# that `ucp_mem_map` has registered, even memory mapped MAP_SHARED, goes through shared memory, as messages do.
#
# What happens: it goes through TCP on the loopback interface, all 64 MiB of it. `ucp_mem_map`, the exchange of the key, the put
# and the flush succeed, and nothing is logged. Only memory that UCX itself allocated (UCP_MEM_MAP_ALLOCATE) is written through
# shared memory. With `shm` in UCX_TLS this is hidden as long as the kernel lets processes write into each other (CMA:
# process_vm_writev); between containers it usually does not, and what is left of `shm` is posix and sysv.
#
# Why it matters for LLM serving: KV arenas are allocated by the framework (torch, CUDA, memfd), not by UCX. Prefill and decode
# workers on one node that are configured for "shared memory" exchange KV at the speed of TCP, with two copies through the kernel.
#
# Seen on 2026-11-30, Linux x86-64:
#   UCX 1.21.0: MiB over the loopback interface for a put of 64 MiB
#   posix,sysv,tcp  registered         64
#   posix,sysv,tcp  allocated-by-ucx   0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet libucx-cu13==1.21.0
ucx=$("$folder/venv/bin/python" -c 'import libucx, pathlib; print(pathlib.Path(libucx.__file__).parent)')
cat >"$folder/put.c" <<'END'
#include <ucp/api/ucp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES = 64 << 20 };

static void need(int ok, const char *what) { if (!ok) { fprintf(stderr, "failed: %s\n", what); exit(2); } }

static void give(int fd, const void *data, size_t size) {
    need(write(fd, &size, sizeof size) == sizeof size && write(fd, data, size) == (ssize_t)size, "write");
}

static void *take(int fd) {
    size_t size, have = 0;
    need(read(fd, &size, sizeof size) == sizeof size, "read");
    char *data = malloc(size);
    for (ssize_t n; have < size; have += n) need((n = read(fd, data + have, size - have)) > 0, "read");
    return data;
}

static long loopback_bytes(void) {
    char line[512];
    long bytes = -1;
    FILE *file = fopen("/proc/net/dev", "r");
    while (fgets(line, sizeof line, file)) sscanf(line, " lo: %ld", &bytes);
    fclose(file);
    return bytes;
}

static ucp_worker_h make_worker(ucp_context_h *context) {
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
    ucp_worker_params_t one = {0};
    ucp_worker_h worker;
    need(ucp_init(&params, NULL, context) == UCS_OK, "ucp_init");
    need(ucp_worker_create(*context, &one, &worker) == UCS_OK, "ucp_worker_create");
    return worker;
}

static void target(int fd, int by_ucx) {
    ucp_context_h context;
    ucp_worker_h worker = make_worker(&context);
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                              UCP_MEM_MAP_PARAM_FIELD_FLAGS, .length = BYTES};
    if (by_ucx) map.flags = UCP_MEM_MAP_ALLOCATE;
    else map.address = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ucp_mem_h memory;
    need(ucp_mem_map(context, &map, &memory) == UCS_OK, "ucp_mem_map");
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    need(ucp_mem_query(memory, &attr) == UCS_OK, "ucp_mem_query");
    memset(attr.address, 0, BYTES);
    void *key;
    size_t size;
    ucp_address_t *address;
    need(ucp_rkey_pack(context, memory, &key, &size) == UCS_OK, "ucp_rkey_pack");
    give(fd, key, size);
    need(ucp_worker_get_address(worker, &address, &size) == UCS_OK, "ucp_worker_get_address");
    give(fd, address, size);
    give(fd, &attr.address, sizeof attr.address);
    char end;
    while (recv(fd, &end, 1, MSG_DONTWAIT) < 0) ucp_worker_progress(worker);
    for (size_t i = 0; i < BYTES; i++) need(((char *)attr.address)[i] == 7, "the bytes arrived");
    _exit(0);
}

static void wait_for(ucp_worker_h worker, void *request, const char *what) {
    need(!UCS_PTR_IS_ERR(request), what);
    if (!request) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker);
    need(ucp_request_check_status(request) == UCS_OK, what);
    ucp_request_free(request);
}

int main(int argc, char **argv) {
    int ends[2], by_ucx = argc > 1 && !strcmp(argv[1], "allocated-by-ucx");
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    if (!fork()) target(ends[1], by_ucx);
    ucp_context_h context;
    ucp_worker_h worker = make_worker(&context);
    void *key = take(ends[0]), *address = take(ends[0]);
    char **remote = take(ends[0]);
    ucp_ep_params_t ep = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    ucp_ep_h endpoint;
    ucp_rkey_h rkey;
    need(ucp_ep_create(worker, &ep, &endpoint) == UCS_OK, "ucp_ep_create");
    need(ucp_ep_rkey_unpack(endpoint, key, &rkey) == UCS_OK, "ucp_ep_rkey_unpack");
    char *data = malloc(BYTES);
    memset(data, 7, BYTES);
    ucp_request_param_t none = {0};
    long before = loopback_bytes();
    wait_for(worker, ucp_put_nbx(endpoint, data, BYTES, (uint64_t)*remote, rkey, &none), "ucp_put_nbx");
    wait_for(worker, ucp_ep_flush_nbx(endpoint, &none), "ucp_ep_flush_nbx");
    printf("%ld\n", (loopback_bytes() - before) >> 20);
    need(write(ends[0], "e", 1) == 1, "write");
    sleep(1);
    return 0;
}
END
gcc -O1 -I"$ucx/include" "$folder/put.c" -o "$folder/put" -L"$ucx/lib" -lucp -lucs "-Wl,-rpath,$ucx/lib"
echo "UCX $(cat "$ucx/VERSION.txt" | head -1): MiB over the loopback interface for a put of 64 MiB"
export UCX_TLS=posix,sysv,tcp
registered=$("$folder/put" registered)
allocated=$("$folder/put" allocated-by-ucx)
echo "$UCX_TLS  registered         $registered"
echo "$UCX_TLS  allocated-by-ucx   $allocated"
if [ "$registered" -lt 64 ] || [ "$allocated" -gt 8 ]; then
    echo "the behaviour has changed" >&2
    exit 1
fi
