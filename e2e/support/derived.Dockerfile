# Images made of today's, in which nothing is installed or compiled again: the engine's with another tag, and those of an
# older commit, with its packages instead of today's.
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
