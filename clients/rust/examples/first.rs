//! A first program: it reads where to begin, and commits after every message.
//!
//!     cargo run --example first -- unix:/run/offset-adapter/adapter.sock

use offset_adapter_client::{Client, Commit, Error, Group};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "unix:/run/offset-adapter/adapter.sock".to_owned());
    let client = Client::new(&address)?;
    let group = Group::new("billing");

    let stored = client.read(&group, ["orders/0"]).await?;
    let mut next = stored.get("orders/0").map_or(0, |stored| stored.offset);
    println!("begins at {next}");
    for _ in 0..3 {
        // ... handle message `next` here ...
        next += 1;
        match client.commit(Commit::of(&group).offset("orders/0", next)).await {
            Ok(_) => println!("committed {next}"),
            Err(Error::Moved(_)) => {
                next = client.read(&group, ["orders/0"]).await?.get("orders/0").map_or(0, |stored| stored.offset)
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
