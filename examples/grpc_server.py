"""Limits before a gRPC server: `python grpc_server.py [port]`."""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

from headgate.http.keys import header
from headgate.integrations.grpc import RateLimitInterceptor

user = header("X-User-Id")
interceptor = RateLimitInterceptor(limits="1000/minute", methods={"/shop.Shop/Hello": "5/minute"}, key=user)
server = grpc.server(ThreadPoolExecutor(8), interceptors=[interceptor])
hello = grpc.unary_unary_rpc_method_handler(lambda message, context: b"hello " + message)
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("shop.Shop", {"Hello": hello})])
server.add_insecure_port(f"127.0.0.1:{sys.argv[1] if sys.argv[1:] else 50051}")
server.start()
server.wait_for_termination()
