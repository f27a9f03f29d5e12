//! **Owns** the only memory that two threads share: bounded mailboxes and the messages in them.
//! **Used by** shard; control uses its messages. **Never** locks, waits or broadcasts: a full
//! mailbox is an outcome that the sender handles and counts.

pub mod mailbox;
pub mod message;
