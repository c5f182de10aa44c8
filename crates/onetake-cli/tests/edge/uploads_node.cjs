// Uploads bodies that are too large, with Node's own client. Prints how many got their 413.
const http = require("node:http");

const [server, uploads] = [process.argv[2], Number(process.argv[3])];
const [host, port] = server.split(":");
const body = Buffer.alloc(8 << 20, "x");

function upload(number) {
  return new Promise((resolve) => {
    const headers = {
      Authorization: "Bearer alice",
      "Idempotency-Key": `node-upload-${String(number).padStart(8, "0")}`,
      "Content-Length": body.length,
    };
    const options = { host, port, method: "POST", path: "/any/charge", headers };
    const request = http.request(options, (response) => {
      let text = "";
      response.on("data", (data) => (text += data));
      response.on("end", () => {
        resolve(response.statusCode === 413 && text.includes("request_body_too_large"));
      });
    });
    request.on("error", (error) => {
      console.error(error.message);
      resolve(false);
    });
    request.end(body);
  });
}

(async () => {
  let seen = 0;
  for (let number = 0; number < uploads; number++) {
    seen += await upload(number);
  }
  console.log(seen);
})();
