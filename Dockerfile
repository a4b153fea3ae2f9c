# Headroom's image: one for every role. `docker build --build-arg VERSION=0.1.0.57 .`
# docs/deployment.md says how it is used; a test runs the steps below without a container daemon.
ARG PYTHON=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /opt/headroom
# What the packages depend on first, so that a change of ours leaves their layer as it is.
COPY run requirements.txt requirements.lock requirements-listener.txt requirements-listener.lock ./
COPY config/__init__.py config/queues.py config/
COPY config/launcher config/launcher/
RUN ./run install listener
COPY . .
# Every build that is deployed has a number of its own, or one cannot be taken back (docs/adr/0031).
ARG VERSION=""
RUN test -z "$VERSION" || sed -i "s/^version = .*/version = \"$VERSION\"/" pyproject.toml
RUN .local/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash . \
    && rm -rf .local/log

FROM ${PYTHON}
ARG VERSION=""
LABEL org.opencontainers.image.title="Headroom" \
      org.opencontainers.image.description="Capacity commitments for OpenStack clouds" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
RUN groupadd --gid 10001 headroom \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
       --shell /usr/sbin/nologin headroom \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/headroom
COPY --from=build /opt/headroom /opt/headroom
WORKDIR /opt/headroom
ENV HEADROOM_LISTEN_ADDRESS=0.0.0.0 \
    HEADROOM_METRICS__LISTEN_ADDRESS=0.0.0.0 \
    HEADROOM_STATE_DIRECTORY=/var/lib/headroom \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000 9464 9465
STOPSIGNAL SIGTERM
# Of the web role; compose.yaml and the chart have their own for the others.
HEALTHCHECK --interval=10s --timeout=3s --retries=3 --start-period=60s \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
ENTRYPOINT ["./run"]
CMD ["serve", "web"]
