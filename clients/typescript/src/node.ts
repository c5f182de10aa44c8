export { FileStore } from "./stores/file.js";
