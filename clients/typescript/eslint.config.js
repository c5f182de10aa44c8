import js from "@eslint/js";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist", "build", "build-break", "node_modules"] },
  js.configs.recommended,
  ...tseslint.configs.strict,
  {
    rules: {
      // A loop that ends by `return` is the clearest form of a retry loop.
      "no-constant-condition": ["error", { checkLoops: false }],
    },
  },
);
