//! `[admin]`: the listener for operators. No message ever repeats a part of its token.

use std::fmt;
use std::net::SocketAddr;

use super::document::Draft;
use super::error::{Fault, Origin, Problems};
use super::fields;
use super::layer::Located;
use super::reader::{Section, Value};
use super::resolve::ADMIN_LISTEN;
use super::secrets::{Env, Found, elsewhere};
use super::tree::Kind;
use super::url::parse_listen;

/// A shorter token could be guessed, even at the few guesses that are let through.
const TOKEN_LENGTH_MIN: usize = 16;
/// The longest token.
const TOKEN_LENGTH_MAX: usize = 512;

const EXAMPLE: &str = "{ env = \"ONETAKE_ADMIN_TOKEN\" }";

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where operators, probes and metrics are served; 127.0.0.1:9091 by default.
    pub listen: SocketAddr,
    /// What everybody but probes has to show. On loopback there need not be one.
    pub token: Option<Token>,
}

/// What operators show.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token; `None` if it is too short, too long, or has other than visible ASCII characters.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let fits = (TOKEN_LENGTH_MIN..=TOKEN_LENGTH_MAX).contains(&text.len());
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        (fits && is_visible).then(|| Self(text.to_owned()))
    }

    /// The token itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

pub(super) fn read(value: &Value<'_>, env: &Env, draft: &mut Draft, problems: &mut Problems<'_>) {
    let Some(table) = Section::open(value, &fields::ADMIN, "[admin]", problems) else {
        return;
    };
    if let Some(value) = table.get("listen") {
        let listen = value.parse("\"127.0.0.1:9091\"", problems, parse_listen);
        let at = || value.node.at.clone();
        draft.admin_listen = listen.map(|listen| Located { value: listen, at: at() });
    }
    draft.admin_token = table.get("token").and_then(|value| read_token(&value, env, problems));
    draft.admin_token_named = table.get("token").is_some();
}

fn read_token(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<Token> {
    let Found { text, at, path } = match &value.node.kind {
        // Digits alone look like a number where a variable holds them.
        Kind::Text(text) | Kind::Integer(text, _) => Found::here(text, value),
        _ => {
            let table = Section::open(value, &fields::SECRET_KEY, EXAMPLE, problems)?;
            elsewhere(&table, value, env, problems)?
        }
    };
    let token = Token::new(text.trim());
    if token.is_none() {
        let what = format!(
            "a token has {TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX} visible ASCII characters"
        );
        problems.add(&at, &path, None, Fault::new(what, "make one with `openssl rand -hex 32`"));
    }
    token
}

/// The listener and its token. Without a token it stays on loopback.
pub(super) fn resolve(draft: &mut Draft, problems: &mut Problems<'_>) -> Admin {
    let named = draft.admin_listen.as_ref();
    let listen = named.map_or(ADMIN_LISTEN, |listen| listen.value);
    if !listen.ip().to_canonical().is_loopback() && !draft.admin_token_named {
        let at = named.map_or(Origin::Absent, |listen| listen.at.clone());
        let what =
            "not on loopback, and there is no `admin.token`: anybody could see and change keys";
        let fix = format!(
            "write token = {EXAMPLE} below [admin], set ONETAKE__ADMIN__TOKEN, or listen on 127.0.0.1:{}",
            listen.port()
        );
        problems.add(&at, "admin.listen", Some(format!("\"{listen}\"")), Fault::new(what, fix));
    }
    Admin { listen, token: draft.admin_token.take() }
}
