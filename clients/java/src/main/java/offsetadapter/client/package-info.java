/**
 * Commits, reads, hands over and watches consumer offsets at the offset adapter that runs beside a message broker. What was committed
 * is on the adapter's disk, and soon in the Meta Service. Begin with {@link offsetadapter.client.Client}.
 */
package offsetadapter.client;
