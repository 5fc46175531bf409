# Images for the test of KEDA: KEDA itself, from the programs that scripts/keda places next to this file, and
# Prometheus.
FROM scratch AS keda
COPY keda /keda
COPY keda-adapter /keda-adapter
USER 65532:65532


FROM docker.io/library/debian:bookworm-slim AS prometheus
RUN apt-get update \
 && apt-get install --yes --no-install-recommends prometheus \
 && rm -rf /var/lib/apt/lists/*
USER 65534:65534
ENTRYPOINT ["/usr/bin/prometheus"]
