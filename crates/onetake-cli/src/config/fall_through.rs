//! The requests that no route matches, for `onetake check`.

use onetake_http::{PathCase, TrailingSlash};

use super::{Config, Route, RoutePattern, Unmatched};

/// The methods that a route can have.
const KEYABLE: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

impl Config {
    /// Describes the requests that no route matches, and what becomes of them.
    #[must_use]
    pub fn fall_through(&self) -> String {
        let fate = match (self.gateway.unmatched, self.defaults.policy.key.required) {
            (Unmatched::Refuse, _) => "404, gateway.unmatched = \"refuse\"",
            (Unmatched::Pass, true) => "[defaults], and a key is required",
            (Unmatched::Pass, false) => {
                "POST and PATCH by [defaults], where a key is optional; other methods without a key"
            }
        };
        let mut lines = vec![format!("requests without a route: {fate}")];
        lines.extend(self.routes.iter().filter_map(|route| other_methods(self, route)));
        let is_exact = |route: &Route| {
            route.settings.policy.paths.trailing_slash == TrailingSlash::Exact
                && !route.pattern.path.to_string().ends_with('}')
        };
        let cases = "a path of a route in another letter case (path_case = \"exact\")";
        let slashes =
            "a path of a route with one slash more or less at its end (trailing_slash = \"exact\")";
        lines.extend(self.routes.iter().any(counts_case).then(|| cases.to_owned()));
        lines.extend(self.routes.iter().any(is_exact).then(|| slashes.to_owned()));
        let every = if self.routes.is_empty() { "every path" } else { "every other path" };
        lines.push(every.to_owned());
        lines.join("\n  ") + "\n"
    }
}

fn counts_case(route: &Route) -> bool {
    let path = route.pattern.path.to_string();
    let mut literals = path.split('/').filter(|segment| !segment.starts_with('{'));
    let has_letters = literals.any(|segment| segment.contains(|c: char| c.is_ascii_alphabetic()));
    route.settings.policy.paths.case == PathCase::Exact && has_letters
}

/// The methods that no route has for the path of this route.
fn other_methods(config: &Config, route: &Route) -> Option<String> {
    let path = &route.pattern.path;
    let is_without = |method: &&str| {
        let same = RoutePattern::parse(&format!("{method} {path}"));
        let same = same.map(|same| same.with_rules(route.settings.policy.paths));
        same.is_ok_and(|same| !config.routes.iter().any(|other| other.pattern.covers(&same)))
    };
    let methods = KEYABLE.into_iter().filter(is_without).collect::<Vec<_>>();
    (!methods.is_empty()).then(|| format!("{} {path}", methods.join(", ")))
}
