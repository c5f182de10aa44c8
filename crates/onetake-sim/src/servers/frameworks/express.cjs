const express = require("express");
const app = express();
app.post("/v1/charges", (request, response) => response.send("ran"));
app.listen(Number(process.argv[2]), "127.0.0.1");
