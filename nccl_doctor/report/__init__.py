"""Report: findings rendered for people and machines. Everything is made safe here: remote text is hostile."""
