package wire

// Asked is the result of a request to check a node.
type Asked string

// Results of a request.
const (
	AskedUnknown  Asked = ""         // the node does not exist
	AskedChecking Asked = "checking" // the node hears it at once
	AskedKept     Asked = "kept"     // the node hears it when it asks its parent next
	AskedPushed   Asked = "pushed"   // the agent here applies the spec of the node, and checks it with everything else
)
