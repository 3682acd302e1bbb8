//! What a client refuses by itself, and what it promises to its embedder.

#[allow(dead_code)]
#[path = "../examples/robustmq/offset_manager.rs"]
mod offset_manager;

use offset_adapter_client::{Client, Commit, Error, Group, Shards};
use offset_manager::{OffsetManager, Refusal};

fn client() -> Client {
    Client::new("127.0.0.1:1").expect("an address")
}

fn field_of<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Invalid { field, .. }) => field,
        other => panic!("not invalid: {other:?}"),
    }
}

#[tokio::test]
async fn an_empty_list_of_shards_is_not_all() {
    let group = Group::new("billing");
    assert_eq!(field_of(client().remove(&group, Vec::new()).await), "shards");
    assert_eq!(field_of(client().read(&group, Shards::Named(Vec::new())).await), "shards");
    assert_eq!(field_of(client().commit(Commit::of(&group)).await), "shards");
}

#[tokio::test]
async fn a_shard_twice_names_the_second() {
    let commit = Commit::of(&Group::new("billing")).offset("orders/0", 1).offset("orders/0", 2);
    assert_eq!(field_of(client().commit(commit).await), "shards[1].shard");
}

#[tokio::test]
async fn an_adapter_that_is_not_there_is_a_lost_call() {
    let client = Client::builder("127.0.0.1:1").timeout(std::time::Duration::from_millis(50)).build().expect("an address");
    let commit = Commit::of(&Group::new("billing")).offset("orders/0", 1);
    assert!(matches!(client.commit(commit).await, Err(Error::Lost { .. })));
    assert!(matches!(client.read(&Group::new("billing"), Shards::All).await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn a_token_does_not_leave_the_machine_in_plaintext() {
    let made = |address| Client::builder(address).token("secret").build().map(|_| ());
    assert!(matches!(made("10.0.0.1:9520"), Err(Error::Config { .. })));
    assert_eq!(made("127.0.0.1:9520"), Ok(()));
    assert_eq!(made("[::1]:9520"), Ok(()));
    assert_eq!(made("unix:/run/a.sock"), Ok(()));
}

#[test]
fn an_address_or_a_place_without_a_runtime_is_told() {
    assert!(matches!(Client::new("127.0.0.1:9520").map(|_| ()), Err(Error::Config { .. })));
}

#[tokio::test]
async fn an_address_without_a_port_is_told() {
    assert!(matches!(Client::new("localhost").map(|_| ()), Err(Error::Config { .. })));
    assert!(matches!(Client::new("http://localhost:9520").map(|_| ()), Err(Error::Config { .. })));
}

#[tokio::test]
async fn every_call_may_be_spawned() {
    fn is_send<T: Send>(_: &T) {}
    let (client, group) = (client(), Group::new("billing"));
    is_send(&client.commit(Commit::of(&group)));
    is_send(&client.read(&group, Shards::All));
    is_send(&client.peek(&group, Shards::All));
    is_send(&client.persist(&group, Shards::All));
    is_send(&client.remove(&group, Shards::All));
    is_send(&client.delete(&group, Shards::All));
    let mut watch = client.watch();
    is_send(&watch.next());
}

#[tokio::test]
async fn a_broker_that_deleted_a_group_does_not_delete_it_again_when_it_hears_of_that() {
    let manager = OffsetManager::new(
        Client::builder("127.0.0.1:1").timeout(std::time::Duration::from_millis(50)).build().expect("an address"),
    );
    let asks_the_adapter = |hearing: Result<(), Refusal>| matches!(hearing, Err(Refusal::Retry(_)));
    assert!(asks_the_adapter(manager.delete_offsets("default", "billing", Shards::All).await));
    assert!(!asks_the_adapter(manager.hear_of_delete("default", "billing", Shards::All).await));
    assert!(asks_the_adapter(manager.hear_of_delete("default", "another", Shards::All).await));
    assert!(asks_the_adapter(manager.hear_of_delete("another", "billing", Shards::All).await));
}
