//! Stores, and routes that they may not be used for.

use super::*;

const PAYMENT: &str = "[gateway]\nupstream = \"http://a\"\n[[route]]\nmatch = \"POST /charges\"\n\
                       preset = \"payment\"\ntenant = \"public\"\n";

fn on(store: &str) -> String {
    format!("{PAYMENT}[store]\n{store}\n")
}

#[test]
fn payments_on_redis_alone_are_refused_and_told_why() {
    assert_eq!(
        refused(&on("url = \"redis://:secret@cache\"")),
        "the configuration has 1 error:\n\nonetake.toml:5:10: route[0].preset = \"payment\": Redis \
         alone is not durable enough for this preset: a failover loses acknowledged writes, and a \
         lost claim can cause a second charge\n    use PostgreSQL with Redis as its filter (below \
         [store]: url = \"postgres://HOST/DATABASE\", filter = \"redis://HOST\"), or accept the \
         risk with allow_lossy = true below [store]"
    );
    let high = on("url = \"rediss-cluster://a,b\"").replace("payment", "high-consequence");
    assert!(refused(&high).contains("route[0].preset = \"high-consequence\""));
    for fine in ["signup", "webhook", "job"] {
        assert!(read(&on("url = \"redis://cache\"").replace("payment", fine)).is_ok(), "{fine}");
    }
    for store in [
        "url = \"redis://cache\"\nallow_lossy = true",
        "url = \"postgres://db/x\"",
        "url = \"postgres://db/x\"\nfilter = \"redis://cache\"",
        "url = \"dynamodb://eu-central-1/onetake\"",
        "url = \"sqlite:x\"",
    ] {
        assert!(read(&on(store)).is_ok(), "{store}");
    }
    // A flag cannot bypass the rule.
    let flags = Overrides { store: Some("redis://cache".to_owned()), ..Overrides::default() };
    assert!(load(Some(PAYMENT), "f", no_env(), flags).is_err());
}

#[test]
fn what_is_allowed_but_dear_is_a_warning() {
    let warnings = |text: &str| read(text).unwrap().warnings();
    assert_eq!(warnings(&on("url = \"postgres://db/x\"")), Vec::<String>::new());
    let lossy = warnings(&on("url = \"redis://cache\"\nallow_lossy = true"));
    assert!(lossy.len() == 1 && lossy[0].contains("Redis alone"), "{lossy:?}");
    let open = PAYMENT.replace("tenant", "on_store_down = \"fail-open\"\ntenant");
    assert_eq!(
        warnings(&open),
        [
            "route[0] (POST /charges, preset \"payment\") has on_store_down = \"fail-open\": while the \
          store is unreachable, every retry runs again"
        ]
    );
    assert_eq!(warnings(&open.replace("payment", "job")), Vec::<String>::new());
}

#[test]
fn a_detector_that_can_find_nothing_is_a_warning() {
    let warnings = |key: &str| {
        let text = format!(
            "[gateway]\nupstream = \"http://a\"\n[[route]]\nmatch = \"PUT /orders/{{id}}\"\n\
             tenant = \"public\"\nduplicate_payload = {{ action = \"log\" }}\nkey = {key}\n"
        );
        read(&text).unwrap().warnings()
    };
    for useless in ["{ from = \"path\", name = \"id\" }", "{ from = \"query\", name = \"id\" }"] {
        let warnings = warnings(useless);
        assert!(warnings.len() == 1 && warnings[0].contains("without effect"), "{warnings:?}");
    }
    for useful in
        ["{ required = true }", "{ from = \"derive\", parts = [\"header:X-A\", \"path:id\"] }"]
    {
        assert_eq!(warnings(useful), Vec::<String>::new(), "{useful}");
    }
}

#[test]
fn the_route_itself_has_to_open_a_payment() {
    let of = |defaults: &str, own: &str| {
        let text = format!("{PAYMENT}{own}\n[defaults]\n{defaults}\n");
        read(&text).unwrap().routes.remove(0).settings.policy.on_store_down
    };
    let open = "on_store_down = \"fail-open\"";
    assert_eq!(of("", ""), OnStoreDown::FailClosed);
    assert_eq!(of(open, ""), OnStoreDown::FailClosed, "the preset stands above [defaults]");
    assert_eq!(of("", open), OnStoreDown::FailOpen);
    let text = "[gateway]\nupstream = \"http://a\"\n[defaults]\non_store_down = \"fail-open\"\n";
    assert_eq!(read(text).unwrap().defaults.policy.on_store_down, OnStoreDown::FailOpen);
}

#[test]
fn a_url_may_come_from_the_environment() {
    let file = "[store]\nurl = { env = \"DATABASE_URL\" }\nfilter = { env = \"CACHE_URL\" }\n";
    let load = |variables: &[(&str, &str)]| {
        input(Some(file), "f", env(variables), Overrides::default()).store()
    };
    let found = load(&[("DATABASE_URL", "postgres://me:secret@db/x"), ("CACHE_URL", "redis://c")]);
    let found = found.unwrap();
    assert_eq!(found.url.to_string(), "postgres://me:***@db/x");
    assert_eq!(found.filter.unwrap().expose(), "redis://c");
    let said = load(&[("DATABASE_URL", "postgres://me:secret@db:x"), ("CACHE_URL", "redis://c")]);
    let said = said.unwrap_err().to_string();
    assert!(said.contains("DATABASE_URL: store.url: not a valid port"), "{said}");
    assert!(!said.contains("secret"), "{said}");
    let said = load(&[("CACHE_URL", "redis://c")]).unwrap_err().to_string();
    assert!(
        said.contains("store.url.env = \"DATABASE_URL\": the environment variable is not set"),
        "{said}"
    );
    // The variable that is named after the field wins, as for all fields.
    let variables = [("ONETAKE__STORE__URL", "postgres://other/x"), ("CACHE_URL", "redis://c")];
    assert_eq!(load(&variables).unwrap().url.to_string(), "postgres://other/x");
}

#[test]
fn a_store_alone_needs_no_upstream() {
    let load = |text, store: Option<&str>| {
        let flags = Overrides { store: store.map(str::to_owned), ..Overrides::default() };
        input(text, "f", no_env(), flags).store().map(|store| store.url.to_string())
    };
    assert_eq!(load(None, None).unwrap(), "embedded:./onetake-data");
    assert_eq!(load(None, Some("memory:")).unwrap(), "memory:");
    assert_eq!(load(Some("[store]\nurl = \"sqlite:x\""), None).unwrap(), "sqlite:x");
    let said = load(None, Some("postgrs://me:secret@db")).unwrap_err().to_string();
    assert!(said.contains("--store: store.url = \"postgrs://me:***@db\""), "{said}");
    assert!(said.contains("did you mean `postgres:`?"), "{said}");
    assert!(
        load(Some("[store]\nulr = \"memory:\""), None).is_err(),
        "the file is checked all the same"
    );
}

#[test]
fn no_form_of_the_configuration_shows_a_password() {
    let store = "url = \"postgres://me:secret@db/x\"\nfilter = \"redis://:secret@cache\"";
    let config = read(&on(store)).unwrap();
    let shown = format!("{config:?} {}", config.store.url).replace("secrets: SecretsConfig", "");
    assert!(!shown.contains("secret"), "{shown}");
    for wrong in [
        "url = \"postgres://me:secret@db/x\"\nfilter = \"postgres://me:secret@db\"",
        "url = \"redis://me:secret@a\"\nfilter = \"redis://:secret@b\"",
        "url = \"postgres://me:sec ret@db\"",
        "url = \"pg://me:secret@db\"",
        "url = [\"postgres://me:secret@db\"]",
    ] {
        let said = refused(&on(wrong));
        assert!(!said.contains("secret") && !said.contains("sec ret"), "{wrong}\n{said}");
    }
}

#[tokio::test]
async fn the_timeouts_of_a_store_are_those_of_the_file() {
    let config = |store: &str| {
        let text = format!("[store]\n{store}");
        input(Some(&text), "f", no_env(), Overrides::default()).store().unwrap()
    };
    let usual = crate::stores::open(&config("url = \"memory:\"")).await.unwrap();
    let limits = onetake_core::Limits::default();
    assert_eq!(usual.limits.claim_patience, limits.claim_patience);
    assert_eq!(usual.limits.settle_patience, limits.settle_patience);
    let short = "url = \"memory:\"\nclaim_timeout = \"300ms\"\nsettle_timeout = \"7s\"";
    let short = crate::stores::open(&config(short)).await.unwrap().limits;
    assert_eq!(short.claim_patience, Duration::from_millis(300));
    assert_eq!(short.settle_patience, Duration::from_secs(7));
    // A server that accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    for (url, within) in
        [(format!("postgres://{address}/x"), "130ms"), (format!("redis://{address}"), "140ms")]
    {
        let store = format!("url = \"{url}\"\nconnect_timeout = \"{within}\"");
        let failed = crate::stores::open(&config(&store)).await.unwrap_err();
        let why = std::error::Error::source(&failed).unwrap().to_string();
        assert!(why.contains(&format!("within {within}")), "{why}");
    }
}
