// Package appsingress acts inside hosted clusters: it makes the VIP of *.apps of each attachment, and says what it saw.
//
//	attachments ─Set─> Runner ─> one worker each: kubeconfig ─> client ─> look (or remove) ─> Observation ─Changed─> Observed
//
// A look is one pass of the steps, in this order, up to the first that is not done: the Secret with the kubeconfig, the
// API server, a Ready node, MetalLB (by OLM, when asked for), its IPAddressPool and L2Advertisement, the LoadBalancer Service of the
// router, the address that MetalLB gave it. Removing goes the other way.
//
// Each attachment has its own goroutine, client, clock and back-off, every request is bounded, and no lock is held over
// one: a hosted cluster that hangs costs the others nothing. What it answers is bounded as well (bounds.go), and so is what is kept of
// it: one that lies, or is full, costs the others no memory.
//
// The package knows nothing of the plan: whether a VIP may be published is decided elsewhere, and so is whether an attachment is
// to be looked at. It never writes to the management cluster, never writes or deletes an object that does not bear the
// labels of its attachment, and runs nothing, reads no file and dials no address that a kubeconfig names.
package appsingress
