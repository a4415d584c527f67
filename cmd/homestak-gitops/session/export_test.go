package session

// Join is what Agent does before it makes the agent.
var Join = Network.join
