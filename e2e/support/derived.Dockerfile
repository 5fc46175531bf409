# Derives images from the current ones, without installing dependencies again: the engine's image with another tag, and
# images in which an older commit's code replaces the current code.
ARG TAG
FROM legato/engine:${TAG} AS next
LABEL next=yes


FROM legato/operator:${TAG} AS code
USER 0
RUN rm -rf /opt/app/legato_*
COPY packages /opt/app/
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/app


FROM legato/operator:${TAG} AS operator
USER 0
RUN rm -rf /opt/app
COPY --from=code /opt/app /opt/app
USER 65532:65532


FROM legato/gateway:${TAG} AS gateway
USER 0
RUN rm -rf /opt/app
COPY --from=code /opt/app /opt/app
USER 65532:65532


FROM legato/engine:${TAG} AS engine
USER 0
RUN rm -rf /opt/app
COPY --from=code /opt/app /opt/app
USER 65532:65532
