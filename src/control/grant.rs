//! Who may do what.
//! Pure: facts in, grant or refusal out.

use crate::config::Auth;
use crate::name::{Facts, Grant, Role};

/// The session code of a refusal: unauthorized.
pub const UNAUTHORIZED: u64 = 0x2;

/// Decides what a peer may do, or the code to close its session with. The peer's root is the path
/// it dialed, which must be in what is public; a role it declared leaves it that half only.
pub fn decide(auth: &Auth, facts: &Facts) -> Result<Grant, u64> {
    let covers = |prefix| facts.path.strip(prefix).is_some();
    if !auth.public.as_ref().is_none_or(covers) {
        return Err(UNAUTHORIZED);
    }
    Ok(Grant {
        root: facts.path.clone(),
        publish: facts.role != Some(Role::Subscriber),
        subscribe: facts.role != Some(Role::Publisher),
    })
}
