//! Headers by which a client names another method than that of its request.
//!
//! Many frameworks can be set up to obey them. A `POST` with `X-HTTP-Method-Override: PUT` then runs
//! the handler of `PUT`, and would get around a route of that method.

use http::Method;
use http::request::Parts;
use onetake_http::Problem;

use super::edge::{is_alike, refused};
use super::plan::{Plan, Plans};

/// The headers that frameworks obey.
const HEADERS: [&str; 3] = ["x-http-method", "x-http-method-override", "x-method-override"];

/// Refuses a request whose headers name a method that has another plan with keys, or with which the
/// request itself would be refused.
pub(super) fn check(plans: &Plans, plan: &Plan, parts: &Parts) -> Result<(), Problem> {
    let is_override = |name: &str| HEADERS.iter().any(|known| is_alike(known, name));
    let values = parts.headers.iter().filter(|(name, _)| is_override(name.as_str()));
    for (_, value) in values {
        let text = value.as_bytes().trim_ascii().to_ascii_uppercase();
        let Ok(method) = Method::from_bytes(&text) else { continue };
        let other = plans.admit(&method, parts.uri.path());
        if other.is_err() {
            return Err(refused(
                "A header such as X-HTTP-Method-Override names another method than that of the request, and a request with that method and this path is refused. Remove the header.",
            ));
        }
        if other.is_ok_and(|other| !std::ptr::eq(&**other, plan) && other.policy.is_some()) {
            return Err(refused(
                "A header such as X-HTTP-Method-Override names another method than that of the request, and a route with idempotency keys matches that method. Send the request with that method.",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plans;
    use super::*;
    use http::Request;

    fn is_refused(method: &str, path: &str, header: (&str, &str)) -> bool {
        is_refused_with("", method, path, header)
    }

    fn is_refused_with(option: &str, method: &str, path: &str, header: (&str, &str)) -> bool {
        let file = format!(
            "[gateway]\nupstream = \"http://a\"\n{option}\n\
             [[route]]\nmatch = \"PUT /orders/{{id}}\"\nkey = {{ required = true }}\n\
             [[route]]\nmatch = \"* /any\"\n",
        );
        let plans = plans(&file);
        let request = Request::builder().method(method).uri(path).header(header.0, header.1);
        let parts = request.body(()).unwrap().into_parts().0;
        let plan = plans.admit(&parts.method, path).unwrap();
        check(&plans, plan, &parts).is_err()
    }

    #[test]
    fn a_route_cannot_be_avoided_by_naming_its_method_in_a_header() {
        for name in ["X-HTTP-Method-Override", "x-http-method", "X_Method-Override"] {
            assert!(is_refused("POST", "/orders/1", (name, "PUT")), "{name}");
            assert!(is_refused("GET", "/orders/1", (name, " put ")), "{name}");
            assert!(is_refused("GET", "/other", (name, "POST")), "the defaults have keys: {name}");
            // A request of PUT for this path is ambiguous, and one of GET is not.
            for path in ["/orders%2f1", "/orders%5c1"] {
                assert!(is_refused("GET", path, (name, "PUT")), "{path}: {name}");
            }
        }
        let unmatched = "unmatched = \"refuse\"";
        assert!(is_refused_with(unmatched, "GET", "/other", ("x-http-method", "DELETE")));
        assert!(!is_refused_with(unmatched, "POST", "/any", ("x-http-method", "DELETE")));
    }

    #[test]
    fn other_overrides_pass() {
        for (method, path, header) in [
            ("PUT", "/orders/1", ("x-http-method-override", "PUT")),
            ("POST", "/any", ("x-http-method-override", "DELETE")),
            ("POST", "/other", ("x-http-method-override", "PATCH")),
            ("POST", "/other", ("x-http-method-override", "GET")),
            ("PUT", "/other", ("x-http-method-override", "DELETE")),
            ("POST", "/orders/1", ("x-method", "PUT")),
            ("POST", "/orders/1", ("x-http-method", "not a method")),
        ] {
            assert!(!is_refused(method, path, header), "{method} {path} {header:?}");
        }
    }
}
