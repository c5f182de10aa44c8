//! The requests that no route matches, as `onetake check` shows them.

use super::*;

fn described(file: &str) -> String {
    let file = format!("[gateway]\nupstream = \"http://127.0.0.1:3000\"\n{file}");
    let config = load(Some(&file), "f.toml", std::iter::empty(), Overrides::default());
    config.unwrap_or_else(|error| panic!("{error}")).fall_through()
}

#[test]
fn a_file_without_routes_has_every_path_in_its_defaults() {
    let said = described("");
    assert_eq!(
        said,
        "requests without a route: POST and PATCH by [defaults], where a key is optional; other methods without a key\n  every path\n"
    );
    let said = described("[defaults]\nkey = { required = true }\n");
    assert!(said.starts_with("requests without a route: [defaults], and a key is required\n"));
}

#[test]
fn methods_and_spellings_that_no_route_has_are_named() {
    let said = described(
        "unmatched = \"refuse\"\n\
         [[route]]\nmatch = \"POST /v1/charges\"\n\
         [[route]]\nmatch = \"PUT,PATCH /v1/{*rest}\"\npath_case = \"ignore\"\n\
         [[route]]\nmatch = \"* /jobs\"\ntrailing_slash = \"exact\"\npath_case = \"ignore\"\n",
    );
    assert_eq!(
        said,
        "requests without a route: 404, gateway.unmatched = \"refuse\"\n  \
         DELETE /v1/charges\n  \
         POST, DELETE /v1/{*rest}\n  \
         a path of a route in another letter case (path_case = \"exact\")\n  \
         a path of a route with one slash more or less at its end (trailing_slash = \"exact\")\n  \
         every other path\n"
    );
    let said = described("[[route]]\nmatch = \"* /v1/{id}\"\npath_case = \"ignore\"\n");
    assert!(!said.contains("letter case") && said.ends_with("key\n  every other path\n"), "{said}");
}
