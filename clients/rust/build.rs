//! Compiles proto/offsets.proto, so that the client has exactly the messages of this repository.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/offsets.proto");
    let files = protox::compile(["offsets.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).build_transport(false).compile_fds(files)?;
    Ok(())
}
