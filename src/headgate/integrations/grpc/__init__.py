"""Limits of gRPC servers: an interceptor for threads, and one for asyncio.

    server = grpc.server(ThreadPoolExecutor(16), interceptors=[RateLimitInterceptor(limits="100/minute")])
    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(policy="policy.yaml")])

A call is checked where its handler would begin: there its peer is known, and a call that waits does so in its own
thread or task. Sources: the gRPC core concepts; gRFC A6 for server pushback.
"""

from headgate.errors import MissingExtraError

try:
    import grpc  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("the integration of gRPC", extra="grpc") from error

from headgate.integrations.grpc.calls import GrpcRequest
from headgate.integrations.grpc.server import AsyncRateLimitInterceptor, GrpcOptions, Methods, RateLimitInterceptor

__all__ = ["AsyncRateLimitInterceptor", "GrpcOptions", "GrpcRequest", "Methods", "RateLimitInterceptor"]
