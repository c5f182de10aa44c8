//! An exhaustive model of the life of a record.
//!
//! The store in this model changes its records by [`onetake_core::decide`] alone: the functions
//! that the real stores apply or are compared with. Around the store, attempts on three nodes,
//! reapers, sweepers, reconcilers and operators take every step that they may take, in every order,
//! while time goes on. Beside the store, the model keeps the promise for each key ([`promise`]),
//! which follows from the store's answers and the text of the design. A wrong decision shows as a
//! difference between the record and the promise. The checker visits every state that can be
//! reached.
//!
//! | step | meaning |
//! | --- | --- |
//! | [`Tick`](Action::Tick) | leases, graces and records end |
//! | [`ClockBack`](Action::ClockBack) | the store's clock goes back; the nodes' clocks do not |
//! | [`Claim`](Action::Claim) | a request with one of two payloads, under one or two terms |
//! | [`LoseClaim`](Action::LoseClaim) | a claimer gives up; its claim may arrive later, or never |
//! | [`LandClaim`](Action::LandClaim) | the store decides a claim whose claimer gave up |
//! | [`Start`](Action::Start) | the attempt checks its own clock, and the first byte is sent |
//! | [`Renew`](Action::Renew) | a lease renewal; also one that arrives after the final report |
//! | [`Report`](Action::Report) | an attempt's final report, late and repeated |
//! | [`Die`](Action::Die) | the attempt never reports |
//! | [`Reap`](Action::Reap) | a reaper ends an attempt that it saw abandoned |
//! | [`Sweep`](Action::Sweep) | a sweeper deletes a record that its index named |
//! | [`Defer`](Action::Defer) | a reconciler takes the turn to ask for an unknown attempt |
//! | [`SettleFor`](Action::SettleFor) | a reconciler or an operator settles for an attempt |
//! | [`Forget`](Action::Forget) | an operator forgets a record |
//!
//! A pause needs no step of its own: an actor that does nothing while time goes on is paused. The
//! first reads of reapers, sweepers, reconcilers and operators need none either. Each read happens
//! as soon as it can, and is never forgotten, so the second step may follow at any moment after it.
//! A later read could only allow less. Any node may have made any read, so the number of reapers,
//! sweepers, reconcilers and operators is not bounded.
//!
//! # Bounds
//!
//! Three attempts claim a key, each on a node of its own. Further claims are tried, but grants to
//! them are not followed. Time ends at [`ModelConfig::ticks`]. Within these bounds nothing is left
//! out: there is no bound on the depth, nor on the number of renewals, repetitions, reads and
//! deletions. All successful operations of one model end in the same way, by
//! [`ModelConfig::outcome`].
//!
//! All features together have too many states. Each model has some of them ([`Features`]); the
//! module [`suite`] lists the models of the short and of the long form.
//!
//! Two symmetries are used. Idle attempts are alike, so they claim in order. The two payloads of a
//! key are alike until one of them is sent.
//!
//! # Honesty
//!
//! It is decided at the start of an operation whether it has an effect. Attempts, reconcilers and
//! operators report the truth: they complete only an operation that started, and release only one
//! that had no effect. Under [`OnUnknown::Rollback`] the effect commits with the completion, so a
//! release is always true, and the commit and a release of one attempt may race.
//!
//! # Not modelled
//!
//! - Audit entries: the engine writes them, and no decision depends on them.
//! - The grace that restarts after a store outage. [`onetake_core::decide`] decides it by the contact
//!   of the asking node ([`Contact`](onetake_core::decide::Contact)); the nodes of a model are always
//!   in contact. The differential test and the conformance suite vary the contact.
//! - A clock that jumps ahead: it ends leases early, and the design accepts that.
//! - A record that expired or was forgotten is absent by the store's clock. If that clock goes back
//!   to before the expiry and no sweep came first, the record is alive again, and the model allows
//!   that.

mod attempts;
mod check;
mod claims;
pub mod config;
pub mod decisions;
pub mod invariants;
mod others;
pub mod promise;
pub mod scenarios;
mod settlements;
pub mod state;
pub mod suite;

use std::sync::Arc;

use onetake_core::{OnUnknown, Terms, Timestamp};
use stateright::Property;

use promise::{KeyLife, LifeStage};
use scenarios::{Coverage, Scenario};
use state::{
    AttemptPhase, AttemptReport, AttemptSlot, ExpiryIndex, KeyState, ModelKey, ModelState, Request,
    RequestPayload, RunProgress, Settler,
};

pub use check::{CheckStats, Violation, check};
pub use config::{Features, ModelConfig, OfferedTerms, TermsChoice, TermsInTicks};
pub use decisions::Decisions;

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    decisions: Decisions,
    coverage: Arc<Coverage>,
}

impl Model {
    /// Creates a model within the bounds of `config`.
    #[must_use]
    pub fn new(config: ModelConfig) -> Self {
        Self::with_decisions(config, Decisions::default())
    }

    /// Creates a model whose store decides by `decisions`.
    #[must_use]
    pub fn with_decisions(config: ModelConfig, decisions: Decisions) -> Self {
        Self { config, decisions, coverage: Arc::default() }
    }

    /// Returns the terms of a request on `key`.
    fn terms(&self, key: ModelKey, request: Request) -> Terms {
        self.config.terms.get(key).get(request.terms).with_tick(self.config.tick)
    }

    /// Returns the policy for unknown outcomes of a request on `key`.
    fn on_unknown(&self, key: ModelKey, request: Request) -> OnUnknown {
        self.config.terms.get(key).get(request.terms).on_unknown
    }

    /// True if a scenario can occur within these bounds.
    fn is_possible(&self, scenario: Scenario) -> bool {
        ModelKey::ALL.into_iter().any(|key| scenario.is_possible(&self.config, key))
    }

    fn claim_actions(&self, state: &ModelState, key: ModelKey, actions: &mut Vec<Action>) {
        let is_first = state.keys.get(key).attempts() == 0;
        let payloads = RequestPayload::ALL.into_iter().filter(|payload| {
            // The payloads are alike until one of them is sent.
            *payload == RequestPayload::This || !is_first
        });
        for payload in payloads {
            for terms in self.config.terms.get(key).choices() {
                let request = Request { payload, terms };
                actions.push(Action::Claim(key, request));
                if self.config.features.lost_claims {
                    actions.push(Action::LoseClaim(key, request));
                }
            }
        }
    }

    fn attempt_actions(
        &self,
        key: ModelKey,
        slot: AttemptSlot,
        phase: AttemptPhase,
        actions: &mut Vec<Action>,
    ) {
        let report = |report| Action::Report(key, slot, report);
        let outcome = self.config.outcome;
        match phase {
            AttemptPhase::Idle | AttemptPhase::Gone => {}
            AttemptPhase::ClaimInFlight(_) => actions.extend([
                Action::LandClaim(key, slot),
                Action::Renew(key, slot),
                report(AttemptReport::Release),
            ]),
            AttemptPhase::Disowned(_) => actions.extend([
                Action::Renew(key, slot),
                Action::Die(key, slot),
                report(AttemptReport::Release),
            ]),
            AttemptPhase::Held(held) => {
                actions.extend([Action::Renew(key, slot), Action::Die(key, slot)]);
                let has_started = held.run != RunProgress::NotStarted;
                if has_started {
                    actions.extend([report(outcome), report(AttemptReport::Unknown)]);
                } else {
                    let rolls_back = self.on_unknown(key, held.request) == OnUnknown::Rollback;
                    if !rolls_back {
                        actions.push(Action::Start(key, slot, RunProgress::WithEffect));
                    }
                    if rolls_back || self.config.features.effectless_runs {
                        actions.push(Action::Start(key, slot, RunProgress::WithoutEffect));
                    }
                }
                if held.run != RunProgress::WithEffect {
                    actions.push(report(AttemptReport::Release));
                }
            }
            AttemptPhase::Reported(request, earlier) => {
                actions.push(Action::Renew(key, slot));
                if self.on_unknown(key, request) == OnUnknown::Rollback {
                    let reports = [outcome, AttemptReport::Unknown, AttemptReport::Release];
                    actions.extend(reports.map(report));
                } else {
                    actions.push(report(earlier));
                }
            }
        }
    }

    /// Adds the steps of actors that act for `slot` on an earlier read.
    fn other_actions(
        &self,
        key: ModelKey,
        slot: AttemptSlot,
        key_state: &KeyState,
        actions: &mut Vec<Action>,
    ) {
        let features = self.config.features;
        let life = key_state.life.filter(|life| life.owner == slot);
        // An attempt that lost the key may have been seen at any time before.
        if key_state.reaper_saw || life.is_none() {
            actions.push(Action::Reap(key, slot));
        }
        if features.reconcilers {
            actions.push(Action::Defer(key, slot));
            if life.is_none_or(|life| life.was_asked_for) {
                self.push_settlements(key, slot, Settler::Reconciler, life, actions);
            }
        }
        if features.operators && life.is_none_or(|life| life.stage != LifeStage::Running) {
            self.push_settlements(key, slot, Settler::Operator, life, actions);
        }
        if features.forgetting {
            actions.push(Action::Forget(key, slot));
        }
    }

    /// Adds the settlements of `settler`, which knows the truth about the attempt.
    fn push_settlements(
        &self,
        key: ModelKey,
        slot: AttemptSlot,
        settler: Settler,
        life: Option<KeyLife>,
        actions: &mut Vec<Action>,
    ) {
        let settle = |report| Action::SettleFor(key, slot, settler, report);
        // A settlement that is no longer accepted was true when it was sent.
        let open = life.filter(|life| life.stage == LifeStage::Unknown);
        let outcome = self.config.outcome;
        let has_started = open.is_none_or(|life| life.run != RunProgress::NotStarted);
        if has_started || outcome == AttemptReport::Fail {
            actions.push(settle(outcome));
        }
        if open.is_none_or(|life| life.run != RunProgress::WithEffect) {
            actions.push(settle(AttemptReport::Release));
        }
    }

    fn key_actions(&self, state: &ModelState, key: ModelKey, actions: &mut Vec<Action>) {
        // A key that is never granted is left out.
        if *self.config.attempts_max.get(key) == 0 {
            return;
        }
        self.claim_actions(state, key, actions);
        let key_state = state.keys.get(key);
        for slot in key_state.asked() {
            let phase = *key_state.attempts.get(slot);
            self.attempt_actions(key, slot, phase, actions);
            if key_state.record.is_some() {
                self.other_actions(key, slot, key_state, actions);
            }
        }
        if key_state.record.is_some() && key_state.expiry_index == ExpiryIndex::Named {
            actions.push(Action::Sweep(key));
        }
    }

    /// Takes one step. Returns true if anything changed.
    fn apply(&self, state: &mut ModelState, action: Action) -> bool {
        match action {
            Action::Tick => self.tick(state),
            Action::ClockBack => self.step_clock_back(state),
            Action::Claim(key, request) => self.claim(state, key, request),
            Action::LoseClaim(key, request) => self.lose_claim(state, key, request),
            Action::LandClaim(key, slot) => self.land_claim(state, key, slot),
            Action::Start(key, slot, run) => self.start(state, key, slot, run),
            Action::Renew(key, slot) => self.renew(state, key, slot),
            Action::Report(key, slot, report) => self.report(state, key, slot, report),
            Action::Die(key, slot) => self.die(state, key, slot),
            Action::Reap(key, slot) => self.reap(state, key, slot),
            Action::Sweep(key) => self.sweep(state, key),
            Action::Defer(key, slot) => self.defer(state, key, slot),
            Action::SettleFor(key, slot, settler, report) => {
                self.settle_for(state, key, slot, settler, report)
            }
            Action::Forget(key, slot) => self.forget(state, key, slot),
        }
    }

    /// Returns the store's time at which a model ends whose clock went back this many times.
    fn end(&self, steps_back: u8) -> Timestamp {
        let ahead = self.config.features.clock_steps_back.saturating_sub(steps_back);
        Timestamp::default().plus(self.config.tick * (self.config.ticks + u32::from(ahead)))
    }
}

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Time advances by a tick.
    Tick,
    /// The store's clock goes back.
    ClockBack,
    /// The next attempt claims a key, and gets the answer.
    Claim(ModelKey, Request),
    /// The next attempt sends a claim, and gives up before it gets the answer.
    LoseClaim(ModelKey, Request),
    /// The claim of an attempt that gave up reaches the store.
    LandClaim(ModelKey, AttemptSlot),
    /// An attempt starts its operation.
    Start(ModelKey, AttemptSlot, RunProgress),
    /// An attempt renews its lease.
    Renew(ModelKey, AttemptSlot),
    /// An attempt reports its end.
    Report(ModelKey, AttemptSlot, AttemptReport),
    /// An attempt dies.
    Die(ModelKey, AttemptSlot),
    /// A reaper ends an attempt that it saw abandoned, maybe long ago.
    Reap(ModelKey, AttemptSlot),
    /// A sweeper deletes a record that its index named, maybe long ago.
    Sweep(ModelKey),
    /// A reconciler takes the turn to ask for an attempt that it saw unknown, maybe long ago.
    Defer(ModelKey, AttemptSlot),
    /// A reconciler or an operator settles an attempt that it saw unknown, maybe long ago.
    SettleFor(ModelKey, AttemptSlot, Settler, AttemptReport),
    /// An operator forgets a record by an attempt that it saw, maybe long ago.
    Forget(ModelKey, AttemptSlot),
}

impl stateright::Model for Model {
    type State = ModelState;
    type Action = Action;

    fn init_states(&self) -> Vec<ModelState> {
        vec![ModelState { now: self.config.start(), ..ModelState::default() }]
    }

    fn actions(&self, state: &ModelState, actions: &mut Vec<Action>) {
        // States after a violation have no meaning.
        if !state.broken.is_empty() {
            return;
        }
        for key in ModelKey::ALL {
            self.key_actions(state, key, actions);
        }
        if state.now < self.end(state.steps_back) {
            actions.push(Action::Tick);
        }
        if state.steps_back < self.config.features.clock_steps_back {
            actions.push(Action::ClockBack);
        }
    }

    fn next_state(&self, state: &ModelState, action: Action) -> Option<ModelState> {
        let mut next = state.clone();
        let is_changed = self.apply(&mut next, action);
        // The answer alone can also break an invariant.
        (is_changed || next.broken != state.broken).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        invariants::properties()
    }
}
