//! An operator that settles unknown keys truthfully, and forgets settled ones.

use std::sync::Arc;

use onetake_core::engine::{Engine, ExpectedState, Intervened, Intervention, OperatorAction};
use onetake_core::{Failure, State};

use super::history::Truth;
use super::reconciler::recording_of;
use super::timeline::SECOND;
use super::world::World;

/// The author of its audit entries.
const NAME: &str = "operator";

/// Reads a key, and settles or forgets it.
pub async fn operate(world: Arc<World>, node: usize, engine: Engine, number: usize, forgets: bool) {
    let _probe = engine.ready().await;
    let Ok(page) = engine.page(None, 100).await else { return };
    let Some(id) = page.ids.get(number % page.ids.len().max(1)).copied() else { return };
    let Ok(mut found) = engine.inspect(vec![id]).await else { return };
    let Some(Ok(Some(record))) = found.pop() else { return };
    let _seen = (engine.find(id.reference()).await, engine.replays(&record));
    let fails = world.decide("operator", |random| random.chance(300));
    let action = match &record.state {
        State::Running { .. } => return,
        State::Unknown { .. } => match world.history.truth(id, record.created_at) {
            Truth::Done(text) => OperatorAction::Resolve(recording_of(&text)),
            Truth::NotDone if fails => {
                let (code, detail) = ("given_up".to_owned(), "an operator gave up".to_owned());
                OperatorAction::Fail(Failure { code, detail })
            }
            Truth::NotDone if forgets => OperatorAction::Forget { seen: ExpectedState::Unknown },
            Truth::NotDone => OperatorAction::Release,
            Truth::Working | Truth::OnItsWay => return,
        },
        State::Completed { .. } if forgets => {
            OperatorAction::Forget { seen: ExpectedState::Completed }
        }
        State::Failed { .. } if forgets => OperatorAction::Forget { seen: ExpectedState::Failed },
        State::Released { .. } if forgets => {
            OperatorAction::Forget { seen: ExpectedState::Released }
        }
        State::Completed { .. } | State::Failed { .. } | State::Released { .. } => return,
    };
    // The truth about an attempt does not change. The key may belong to another attempt by the time
    // the operator acts.
    let pause = world.decide("operator's pause", |random| {
        if random.chance(500) { 0 } else { random.below(3 * SECOND) }
    });
    world.timeline.sleep(pause, node + 1).await;
    let (by, reason) = (NAME.to_owned(), "simulated".to_owned());
    let forgot = matches!(action, OperatorAction::Forget { .. });
    let wanted = Intervention { id, attempt: record.attempt, action, by, reason };
    if let Ok(Intervened::Done(_)) = engine.intervene(wanted).await {
        if forgot {
            world.history.told_forgotten(world.now(), node, id, record.attempt);
        }
        let entries = world.backend.audit_entries(Some(id), None, 100);
        let is_noted =
            entries.is_ok_and(|entries| entries.entries.iter().any(|entry| entry.by == NAME));
        if !is_noted {
            let what = format!("{id:?} was settled by an operator without a note");
            world.history.violate(world.now(), "S20", what);
        }
    }
}
