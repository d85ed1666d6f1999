#[derive(Default)] pub(super) struct Cuts; impl Cuts { pub(super) fn reach(&self, _: super::disk::Step) -> std::io::Result<()> { Ok(()) } }
