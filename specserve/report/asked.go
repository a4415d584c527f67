package report

// Asked is what became of the request to check a node.
type Asked string

// What may become of it.
const (
	Unknown  Asked = ""         // there is no such node
	Checking Asked = "checking" // the node hears it at once
	Kept     Asked = "kept"     // the node hears it when it asks its parent next
	Pushed   Asked = "pushed"   // the agent here applies the spec of the node, and checks it with everything else
)
