// A service of Restate. A second server counts its runs.
if (!Promise.withResolvers) {
    // For Node 20.
    Promise.withResolvers = () => {
        let resolve, reject;
        const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]));
        return { promise, resolve, reject };
    };
}
const http = require("http");
const restate = require("@restatedev/restate-sdk");

let count = 0;
const charge = async () => {
    const id = "ch_" + String(count++).padStart(16, "0");
    return { id, amount: 100, currency: "eur" };
};
const payments = restate.service({ name: "payments", handlers: { charge } });
restate.endpoint().bind(payments).setLogger(() => {}).listen(Number(process.argv[2]));
http.createServer((_, response) => response.end(String(count))).listen(Number(process.argv[3]), "127.0.0.1");
