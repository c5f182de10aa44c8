"""Logs and traces: an observer runs in the context of its call."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from onetake import Onetake
from onetake.httpx import AsyncOnetakeTransport, OnetakeTransport

NAMES = ["one", "two", "three"]


def recorder():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test"), exporter


def observe(event):
    trace.get_current_span().add_event(event.type)


def check(exporter, retries):
    spans = exporter.get_finished_spans()
    assert sorted(span.name for span in spans) == sorted(NAMES)
    types = [[event.name for event in span.events] for span in spans]
    for listed in types:
        assert listed[0] == "attempt"
        assert listed.count("end") == 1
        assert listed[-1] == "end"
    assert sum(listed.count("retry") for listed in types) == retries


def test_an_event_is_in_the_span_of_its_caller_in_threads(server, clock):
    server.answers(503, 503, 201)
    tracer, exporter = recorder()
    onetake = Onetake(clock=clock, observe=observe)

    def call(name):
        client = httpx.Client(transport=OnetakeTransport(onetake))
        with tracer.start_as_current_span(name), client:
            client.post(server.url)

    with ThreadPoolExecutor(len(NAMES)) as threads:
        list(threads.map(call, NAMES))
    check(exporter, 2)


def test_an_event_is_in_the_span_of_its_caller_in_tasks(server, clock):
    server.answers(503, 503, 201)
    tracer, exporter = recorder()
    onetake = Onetake(clock=clock, observe=observe)

    async def call(name):
        with tracer.start_as_current_span(name):
            async with httpx.AsyncClient(transport=AsyncOnetakeTransport(onetake)) as client:
                await client.post(server.url)

    async def all_calls():
        await asyncio.gather(*map(call, NAMES))

    asyncio.run(all_calls())
    check(exporter, 2)
