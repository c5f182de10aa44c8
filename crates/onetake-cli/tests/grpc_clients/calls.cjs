// Calls a gRPC service with the retries of @grpc/grpc-js. Arguments: address, number of calls.
const { randomUUID } = require("node:crypto");
const grpc = require("@grpc/grpc-js");

const [address, count] = process.argv.slice(2);
const policy = {
  methodConfig: [
    {
      name: [{ service: "billing.v1.Payments" }],
      retryPolicy: {
        maxAttempts: 5,
        initialBackoff: "0.01s",
        maxBackoff: "0.05s",
        backoffMultiplier: 2,
        retryableStatusCodes: ["UNAVAILABLE", "ABORTED"],
      },
    },
  ],
};
const client = new grpc.Client(address, grpc.credentials.createInsecure(), {
  "grpc.enable_retries": 1,
  "grpc.service_config": JSON.stringify(policy),
  "grpc.enable_http_proxy": 0,
  "grpc.initial_reconnect_backoff_ms": 20,
  "grpc.max_reconnect_backoff_ms": 100,
});
const same = (bytes) => bytes;

function charge(nth) {
  const key = `node-${randomUUID()}`;
  const metadata = new grpc.Metadata();
  metadata.set("idempotency-key", key);
  metadata.set("x-case", key);
  metadata.set("authorization", "Bearer alice");
  const message = Buffer.from(String(nth));
  const options = { deadline: Date.now() + 60_000 };
  return new Promise((resolve) => {
    const told = { case: key };
    const call = client.makeUnaryRequest(
      "/billing.v1.Payments/Charge",
      same,
      same,
      message,
      metadata,
      options,
      (error, reply) => {
        if (error) {
          Object.assign(told, { error: grpc.status[error.code], details: error.details });
        } else {
          told.reply = reply.toString();
        }
      },
    );
    call.on("status", (status) => {
      told.cost = status.metadata.get("x-cost")[0];
      setImmediate(() => resolve(told));
    });
  });
}

(async () => {
  for (let nth = 0; nth < Number(count); nth += 1) {
    console.log(JSON.stringify(await charge(nth)));
  }
  client.close();
})();
