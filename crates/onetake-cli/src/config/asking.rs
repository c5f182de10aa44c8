//! What a reconciler needs of the route that it is named in.

use super::error::{Fault, Origin, Problems};
use super::layer::Layer;
use super::reconcile::{Placeholder, Template};
use super::resolve::{on_unknown, pick, policy};
use super::store_url::StoreUrl;
use super::{OnUnknown, Policy, TenantConfig};

/// Whoever reconciles must be able to ask, and about one operation only. The first of the layers is the one that
/// `path` names.
pub(super) fn check(layers: &[&Layer], path: &str, store: &StoreUrl, problems: &mut Problems<'_>) {
    let first = layers.first();
    let says_nothing = |layer: &Layer| {
        layer.on_unknown.is_none() && layer.reconcile.is_none() && layer.tenant.is_none()
    };
    if layers.len() > 1 && first.is_some_and(|layer| says_nothing(layer)) {
        // What is wrong with [defaults] is told once.
        return check_times(layers, path, store, problems);
    }
    let own = first.and_then(|layer| layer.reconcile.as_ref());
    let Some(reconcile) = pick(layers, |layer| layer.reconcile.clone()) else {
        let named = pick(layers, |layer| layer.on_unknown.clone());
        let named = named.filter(|named| named.value == OnUnknown::Reconcile);
        if let Some(named) = named {
            let fault = Fault::new(
                "nobody is named who could be asked",
                "write beside it for example reconcile = \"GET http://127.0.0.1:3000/charges/by-key/{derived_key}\"",
            );
            problems.add(
                &named.at,
                &format!("{path}.on_unknown"),
                Some("\"reconcile\"".into()),
                fault,
            );
        }
        return;
    };
    let field = format!("{path}.reconcile");
    if on_unknown(layers) != OnUnknown::Reconcile {
        if let Some(own) = own {
            let what = "nobody is asked unless on_unknown is \"reconcile\"";
            let fix = "write on_unknown = \"reconcile\" beside it, or remove it";
            problems.add(&own.at, &field, None, Fault::new(what, fix));
        }
        return;
    }
    let tenant = pick(layers, |layer| layer.tenant.clone());
    let tenant = tenant.unwrap_or(TenantConfig::CredentialOrPublic);
    if let Some(fault) = check_tenant(&reconcile.value.target, &tenant) {
        problems.add(&reconcile.at, &field, None, fault);
    }
    check_times(layers, path, store, problems);
}

/// Whether there is time to ask before the key expires.
fn check_times(layers: &[&Layer], path: &str, store: &StoreUrl, problems: &mut Problems<'_>) {
    let times = |policy: &Policy| (policy.ttl, policy.upstream_timeout, policy.grace);
    let route = policy(layers);
    let defaults = layers.last().filter(|_| layers.len() > 1).map(|defaults| policy(&[*defaults]));
    let is_told = defaults.is_some_and(|defaults| {
        times(&defaults) == times(&route) && defaults.reconcile == route.reconcile
    });
    let Some(reconcile) = route.reconcile.as_ref().filter(|_| !is_told) else { return };
    let from =
        route.upstream_timeout.saturating_add(route.grace).saturating_add(store.clock_skew_max());
    // Half of it is for asking; see `limit`.
    let needed = from.saturating_add(reconcile.timeout).saturating_mul(2);
    if route.ttl >= needed {
        return;
    }
    let what = format!(
        "outcomes are asked for no sooner than {from:?} after the attempt began (upstream_timeout and grace{}), and keys are kept for {:?}: nobody would be asked in time",
        if store.clock_skew_max().is_zero() { "" } else { ", and by how much clocks may differ" },
        route.ttl,
    );
    let fix = format!(
        "write a ttl of {}s or more, or a shorter upstream_timeout or grace",
        needed.as_secs_f64().ceil()
    );
    let at = pick(layers, |layer| layer.reconcile.clone()).map(|reconcile| reconcile.at);
    let at = at.unwrap_or(Origin::Absent);
    problems.add(&at, &format!("{path}.ttl"), None, Fault::new(what, fix));
}

/// What may not be filled in, given whose keys they are.
fn check_tenant(target: &Template, tenant: &TenantConfig) -> Option<Fault> {
    let has = |place| target.has(place);
    let fix = "use {derived_key}: the operation is sent it as Idempotency-Derived-Key";
    match tenant {
        TenantConfig::Credential | TenantConfig::CredentialOrPublic if has(Placeholder::Tenant) => {
            let what = "the tenant is a credential, and {tenant} would put it into a URL, and so into logs";
            Some(Fault::new(what, fix))
        }
        TenantConfig::Jwt(_) if has(Placeholder::Tenant) => {
            let what = "the tenant is an issuer and a claim, which {tenant} cannot tell apart";
            Some(Fault::new(what, fix))
        }
        TenantConfig::Public => None,
        _ if has(Placeholder::Key) && !has(Placeholder::Tenant) => {
            let what = "{key} without {tenant}: two tenants may use the same key, and would be told each other's outcome";
            Some(Fault::new(what, fix))
        }
        _ => None,
    }
}
